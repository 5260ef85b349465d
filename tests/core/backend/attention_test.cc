#include "tests/reference/attention.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::AttentionConfig;
using reference::Vec;
using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::SineSequence;
using testing::UnwrittenTensor;

// Scores and sums over up to 1,300 keys in f32.
constexpr double kTolerance = 3e-6;

struct Tensors {
  explicit Tensors(const AttentionConfig& config, Padding padding = Padding::kNone) : c(config) {
    const int64_t tq = c.cu_seqlens_q.back(), tk = c.cu_seqlens_k.back();
    const auto random = [&](const char* name, int64_t rows, int64_t cols) {
      return RandomTensor(name, {rows, cols}, {.padding = padding});
    };
    const auto output = [&](int64_t rows, int64_t cols) {
      return UnwrittenTensor({rows, cols}, DType::kF32, padding);
    };
    args.q = random("q", tq, c.heads * c.head_dim);
    args.k = random("k", tk, c.kv_heads * c.head_dim);
    args.v = random("v", tk, c.kv_heads * c.value_dim);
    args.cu_seqlens_q = c.cu_seqlens_q;
    args.cu_seqlens_k = c.cu_seqlens_k;
    args.num_heads = c.heads;
    args.num_kv_heads = c.kv_heads;
    args.head_dim = c.head_dim;
    args.value_dim = c.value_dim;
    args.scale = c.scale;
    args.window = c.window;
    out = output(tq, c.heads * c.value_dim);
    lse = output(tq, c.heads);
    dout = random("dout", tq, c.heads * c.value_dim);
    dq = output(tq, c.heads * c.head_dim);
    dk = output(tk, c.kv_heads * c.head_dim);
    dv = output(tk, c.kv_heads * c.value_dim);
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  void Forward() { CurrentBackend().Attention(args, out, lse); }
  void Backward() { CurrentBackend().AttentionBackward(args, out, lse, dout, dq, dk, dv); }

  AttentionConfig c;
  AttentionArgs args;
  Tensor out, lse, dout, dq, dk, dv;
};

class AttentionTest : public ::testing::TestWithParam<AttentionConfig> {};

AttentionConfig Same(std::vector<int32_t> cu, int64_t heads, int64_t kv_heads, int64_t head_dim,
                     int64_t value_dim, int64_t window = 0) {
  return {cu, cu, heads, kv_heads, head_dim, value_dim, 0.3, window};
}

// Documents of length 0 and 1; grouped, multi-query and plain heads; dims that are no multiple of a
// vector, above one panel, and value dims that differ; lengths around the tiles (48, 128) and key
// blocks (256, 512); windows inside a tile, across blocks, and longer than the document.
INSTANTIATE_TEST_SUITE_P(
    Cases, AttentionTest,
    ::testing::Values(Same({0}, 1, 1, 4, 4), Same({0, 0, 1, 1, 4}, 2, 1, 4, 4),
                      Same({0, 5, 6, 53, 53, 150}, 4, 2, 12, 20), Same({0, 129, 386}, 3, 1, 20, 12),
                      Same({0, 300}, 2, 2, 64, 64), Same({0, 130, 131}, 2, 2, 68, 100, 9),
                      Same({0, 1100}, 1, 1, 8, 4), Same({0, 40, 1340}, 2, 1, 6, 5, 300),
                      Same({0, 600}, 1, 1, 5, 3, 513), Same({0, 70}, 4, 1, 16, 16, 1000),
                      Same({0, 60}, 1, 1, 520, 24)));

TEST_P(AttentionTest, ForwardAndBackwardMatchTheReference) {
  ForEachVariant(
      [&](Padding padding) {
        Tensors t(GetParam(), padding);
        t.Forward();
        t.Backward();
        return std::vector<Tensor>{t.out, t.lse, t.dq, t.dk, t.dv};
      },
      [&](const std::vector<Tensor>& result) {
        const Tensors t(GetParam());
        const Vec q = ToVector<double>(t.args.q), k = ToVector<double>(t.args.k),
                  v = ToVector<double>(t.args.v), dout = ToVector<double>(t.dout);
        const auto expected = reference::Attention(q, k, v, t.c);
        const auto gradients = reference::AttentionBackward(q, k, v, dout, t.c);
        ExpectClose(result[0], expected.out, kTolerance, "out");
        ExpectClose(result[1], expected.lse, kTolerance, "lse");
        ExpectClose(result[2], gradients.dq, kTolerance, "dq");
        ExpectClose(result[3], gradients.dk, kTolerance, "dk");
        ExpectClose(result[4], gradients.dv, kTolerance, "dv");
      });
}

// Fewer queries than keys: a cache.
TEST(AttentionCacheTest, MatchesTheReference) {
  for (int64_t window : {0, 3, 60}) {
    const AttentionConfig config{{0, 1, 3, 3, 60}, {0, 7, 610, 700, 800}, 4, 2, 12, 8, 0.4, window};
    ForEachVariant(
        [&](Padding padding) {
          Tensors t(config, padding);
          t.Forward();
          return std::vector<Tensor>{t.out, t.lse};
        },
        [&](const std::vector<Tensor>& result) {
          const Tensors t(config);
          const auto expected =
              reference::Attention(ToVector<double>(t.args.q), ToVector<double>(t.args.k),
                                   ToVector<double>(t.args.v), config);
          ExpectClose(result[0], expected.out, kTolerance, "out");
          ExpectClose(result[1], expected.lse, kTolerance, "lse");
        });
  }
}

// G6: 6 tokens, 4 heads, 2 KV heads.
TEST(AttentionGoldenTest, CausalAndWindow) {
  struct Golden {
    int64_t window;
    double out, dq, dk, dv;
  };
  ScopedTestContext context;
  for (const Golden& golden :
       {Golden{0, -2.777539286902, -2.558484116571, 3.403885370519, -0.1092449488894},
        Golden{3, -1.228273154590, -2.349649248631, 0.949314278823, -6.429355774e-2}}) {
    AttentionConfig config = Same({0, 6}, 4, 2, 4, 4, golden.window);
    config.scale = .5;
    Tensors t(config);
    t.args.q = MakeTensor(SineSequence(96, .31, .1, 2), {6, 16});
    t.args.k = MakeTensor(SineSequence(48, .47, .6, 2), {6, 8});
    t.args.v = MakeTensor(SineSequence(48, .59, .2), {6, 8});
    t.dout = MakeTensor(SineSequence(96, .23, .7), {6, 16});
    t.Forward();
    t.Backward();
    const auto checksum = [](const Tensor& x) {
      return testing::CosineChecksum(ToVector<double>(x));
    };
    EXPECT_NEAR(checksum(t.out), golden.out, 5e-6);
    EXPECT_NEAR(checksum(t.dq), golden.dq, 5e-6);
    EXPECT_NEAR(checksum(t.dk), golden.dk, 5e-6);
    EXPECT_NEAR(checksum(t.dv), golden.dv, 5e-6);
  }
}

// Rows [begin, end) of the inputs of `whole` as a batch of one document.
void UseRows(const Tensors& whole, int64_t begin, int64_t end, Tensors& part) {
  part.args.q = whole.args.q.Narrow(begin, end - begin);
  part.args.k = whole.args.k.Narrow(begin, end - begin);
  part.args.v = whole.args.v.Narrow(begin, end - begin);
  part.dout = whole.dout.Narrow(begin, end - begin);
}

TEST(AttentionInvarianceTest, PackedDocumentsHaveTheBitsOfSeparateOnes) {
  ScopedTestContext context(2);
  const std::vector<int32_t> cu = {0, 77, 78, 400, 1000};
  Tensors packed(Same(cu, 4, 2, 20, 12));
  packed.Forward();
  packed.Backward();
  for (size_t n = 0; n + 1 < cu.size(); ++n) {
    const int32_t length = cu[n + 1] - cu[n];
    Tensors alone(Same({0, length}, 4, 2, 20, 12));
    UseRows(packed, cu[n], cu[n + 1], alone);
    alone.Forward();
    alone.Backward();
    const auto same = [&](const Tensor& a, const Tensor& b, const char* what) {
      ExpectBitEqual(a, b.Narrow(cu[n], length), absl::StrCat(what, " of document ", n));
    };
    same(alone.out, packed.out, "out");
    same(alone.lse, packed.lse, "lse");
    same(alone.dq, packed.dq, "dq");
    same(alone.dk, packed.dk, "dk");
    same(alone.dv, packed.dv, "dv");
  }
}

// Generation reads a cache one token at a time: the same bits as the whole sequence at once.
TEST(AttentionInvarianceTest, ACacheGivesTheBitsOfTheWholeSequence) {
  ScopedTestContext context(2);
  for (int64_t window : {0, 100}) {
    Tensors whole(Same({0, 1100}, 2, 1, 12, 8, window));
    whole.Forward();
    for (int64_t i : {0, 1, 47, 48, 300, 511, 512, 600, 1099}) {
      for (int64_t queries : {1, 30}) {
        if (i + 1 < queries) continue;
        AttentionConfig config = whole.c;
        config.cu_seqlens_q = {0, static_cast<int32_t>(queries)};
        config.cu_seqlens_k = {0, static_cast<int32_t>(i + 1)};
        Tensors step(config);
        step.args.q = whole.args.q.Narrow(i + 1 - queries, queries);
        step.args.k = whole.args.k.Narrow(0, i + 1);
        step.args.v = whole.args.v.Narrow(0, i + 1);
        step.Forward();
        ExpectBitEqual(step.out, whole.out.Narrow(i + 1 - queries, queries),
                       absl::StrCat("token ", i));
        ExpectBitEqual(step.lse, whole.lse.Narrow(i + 1 - queries, queries), "lse");
      }
    }
  }
}

TEST(AttentionInvarianceTest, AWindowAsLongAsTheDocumentIsNone) {
  ScopedTestContext context;
  Tensors causal(Same({0, 530}, 1, 1, 8, 8)), window(Same({0, 530}, 1, 1, 8, 8, 530));
  for (Tensors* t : {&causal, &window}) {
    t->Forward();
    t->Backward();
  }
  ExpectBitEqual(window.out, causal.out, "out");
  ExpectBitEqual(window.dk, causal.dk, "dk");
}

// Scores far beyond the range of e^x.
TEST(AttentionEdgeTest, LargeScoresStayFinite) {
  ScopedTestContext context;
  AttentionConfig config = Same({0, 70}, 1, 1, 4, 4);
  config.scale = 300;
  Tensors t(config);
  t.Forward();
  t.Backward();
  const Vec q = ToVector<double>(t.args.q), k = ToVector<double>(t.args.k),
            v = ToVector<double>(t.args.v);
  // One ulp of a score of a thousand moves e^z by 1e-4.
  ExpectClose(t.out, reference::Attention(q, k, v, config).out, 1e-3, "out");
  for (float value : ToVector<float>(t.dq)) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace meshfold
