// Rotary positions and attention against f64.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/attention.h"
#include "tests/reference/rope.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using reference::AttentionConfig;
using reference::Vec;

constexpr double kRounding = 5e-7, kTolerance = 5e-6;

class OpsAttentionTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

struct RopeCase {
  int64_t heads, head_dim, pairs;
};

TEST_F(OpsAttentionTest, Rope) {
  std::vector<int32_t> positions = {0, 1, 2, 0, 1, 5, 3};
  for (const RopeCase& c :
       std::vector<RopeCase>{{1, 2, 1}, {3, 6, 3}, {2, 7, 2}, {4, 64, 32}, {2, 3, 0}}) {
    reference::RopeTables tables = reference::MakeRopeTables(6, c.pairs, 1e4);
    RopeTable table{MakeTensor(tables.cos, {6, c.pairs}), MakeTensor(tables.sin, {6, c.pairs})};
    Tensor x = Guarded("x", {7, c.heads * c.head_dim}), dy = Guarded("dy", x.shape());
    auto rotated = [&](const Tensor& v, bool inverse) {
      return reference::Rope(F64(v), c.heads, c.head_dim, positions, tables, c.pairs, inverse);
    };
    ExpectOp([&](const auto& in) { return Rope(in[0], c.heads, MakeIds(positions, {7}), table); },
             {x}, dy, {rotated(x, false), {rotated(dy, true)}}, kRounding,
             absl::StrCat(c.heads, " heads of ", c.head_dim, ", ", c.pairs, " pairs"));
  }
}

AttentionOptions OptionsOf(const AttentionConfig& c) {
  return {.num_heads = c.heads,
          .num_kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .scale = c.scale,
          .window = c.window};
}

// Causal attention of whole documents.
AttentionConfig Causal(std::vector<int32_t> cu_seqlens, int64_t heads, int64_t kv_heads,
                       int64_t head_dim, int64_t value_dim, int64_t window = 0) {
  return {cu_seqlens, cu_seqlens, heads, kv_heads, head_dim, value_dim, 0.4, window};
}

// GQA, MQA, one head; values wider and narrower than keys; windows; empty and single-token
// documents; a padded pitch (256 columns of q).
std::vector<AttentionConfig> AttentionCases() {
  return {Causal({0, 9}, 1, 1, 3, 3),      Causal({0, 3, 3, 8, 9}, 4, 2, 4, 4),
          Causal({0, 1, 7}, 4, 1, 5, 2),   Causal({0, 6, 11}, 3, 3, 2, 6, 2),
          Causal({0, 5}, 2, 1, 4, 4, 1),   Causal({0, 5}, 2, 1, 4, 4, 100),
          Causal({0, 2, 4}, 16, 1, 16, 1), Causal({0}, 2, 1, 4, 4)};
}

TEST_F(OpsAttentionTest, Attention) {
  for (const AttentionConfig& c : AttentionCases()) {
    int64_t tokens = c.cu_seqlens_q.back();
    Tensor q = Guarded("q", {tokens, c.heads * c.head_dim}),
           k = Guarded("k", {tokens, c.kv_heads * c.head_dim}),
           v = Guarded("v", {tokens, c.kv_heads * c.value_dim}),
           dout = Guarded("dout", {tokens, c.heads * c.value_dim});
    reference::AttentionGradients grads =
        reference::AttentionBackward(F64(q), F64(k), F64(v), F64(dout), c);
    auto op = [&](const auto& in) {
      return Attention(in[0], in[1], in[2], c.cu_seqlens_q, c.cu_seqlens_k, OptionsOf(c));
    };
    ExpectOp(op, {q, k, v}, dout,
             {reference::Attention(F64(q), F64(k), F64(v), c).out, {grads.dq, grads.dk, grads.dv}},
             kTolerance,
             absl::StrCat(c.heads, "/", c.kv_heads, " heads, window ", c.window, ", ", tokens,
                          " tokens"));
  }
}

// Queries of the last positions against all keys: what generation asks for.
TEST_F(OpsAttentionTest, FewerQueriesThanKeysAreTheLastOnes) {
  Tensor q = RandomTensor("q", {7, 8}), k = RandomTensor("k", {7, 4}),
         v = RandomTensor("v", {7, 3});
  for (int64_t window : {0, 3}) {
    AttentionConfig c = Causal({0, 7}, 2, 1, 4, 3, window);
    Vec whole = reference::Attention(F64(q), F64(k), F64(v), c).out;
    Variable out =
        Attention(Variable(q.Narrow(5, 2)), Variable(k), Variable(v), {0, 2}, {0, 7}, OptionsOf(c));
    ExpectClose(Plain(out.data()), Vec(whole.end() - 2 * 6, whole.end()), kTolerance);
  }
}

TEST_F(OpsAttentionTest, PassTheGradientCheck) {
  AttentionConfig c = Causal({0, 3, 8}, 2, 1, 4, 3, 3);
  Tensor q = RandomTensor("q", {8, 8}), k = RandomTensor("k", {8, 4}),
         v = RandomTensor("v", {8, 3});
  auto op = [&](absl::Span<const Variable> in) {
    return Attention(in[0], in[1], in[2], c.cu_seqlens_q, c.cu_seqlens_k, OptionsOf(c));
  };
  EXPECT_EQ(CheckGradients(op, {q, k, v}), absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
