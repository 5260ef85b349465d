// SelfAttention against f64.
#include "core/nn/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/core/nn/small_attention.h"
#include "tests/reference/layers.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using reference::Vec;
using Parameters = std::map<std::string, Vec>;

// Chains of a few f32 sums, relative to the largest element.
constexpr double kTolerance = 1e-5;

class SelfAttentionTest : public ::testing::Test {
 protected:
  // The reference of the module that `o` describes.
  static Vec Reference(const SelfAttention::Options& o, const std::vector<int32_t>& cu_seqlens,
                       const Vec& x, const Parameters& p) {
    auto get = [&](const std::string& name) {
      auto it = p.find("a." + name);
      return it == p.end() ? Vec() : it->second;
    };
    reference::SelfAttentionTensors t{.x = x,
                                      .q = get("q.weight"),
                                      .k = get("k.weight"),
                                      .v = get("v.weight"),
                                      .o = get("o.weight"),
                                      .q_bias = get("q.bias"),
                                      .k_bias = get("k.bias"),
                                      .v_bias = get("v.bias"),
                                      .o_bias = get("o.bias"),
                                      .q_norm = get("q_norm.weight"),
                                      .k_norm = get("k_norm.weight")};
    bool per_head = o.qk_norm == QkNormKind::kPerHead, normed = o.qk_norm != QkNormKind::kNone;
    return reference::SelfAttention(
        t, {.hidden_size = o.hidden_size,
            .core = {.cu_seqlens_q = cu_seqlens,
                     .cu_seqlens_k = cu_seqlens,
                     .heads = o.attention.num_heads,
                     .kv_heads = o.attention.num_kv_heads,
                     .head_dim = o.attention.head_dim,
                     .value_dim = o.attention.value_dim,
                     .scale = o.attention.scale,
                     .window = o.attention.window},
            .rotated_pairs = o.rope == nullptr ? 0 : o.rope->cos.cols(),
            .theta = kSmallTheta,
            .q_norm_groups = normed ? (per_head ? o.attention.num_heads : 1) : 0,
            .k_norm_groups = normed ? (per_head ? o.attention.num_kv_heads : 1) : 0,
            .norm_eps = o.norm_eps,
            .clip = o.clip_qkv});
  }

  void ExpectReference(const SelfAttention::Options& options,
                       const std::vector<int32_t>& cu_seqlens = {0, 4, 5, 10}) {
    auto module = MakeRandom(options);
    Tensor x = RandomTensor("x", {cu_seqlens.back(), 10});
    ExpectModule(
        *module, x, RandomBatch(cu_seqlens),
        [&](const Vec& values, const Parameters& p) {
          return Reference(options, cu_seqlens, values, p);
        },
        kTolerance);
  }

  ScopedTestContext context_;
};

TEST_F(SelfAttentionTest, GroupedQueries) { ExpectReference(SmallAttention()); }

TEST_F(SelfAttentionTest, OneKvHead) {
  SelfAttention::Options options = SmallAttention();
  options.attention.num_kv_heads = 1;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, AsManyKvHeads) {
  SelfAttention::Options options = SmallAttention();
  options.attention.num_kv_heads = 4;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, PartialAndNoRotation) {
  SelfAttention::Options options = SmallAttention();
  options.rope = SmallRopeTable(16, 2);
  ExpectReference(options);
  options.rope = nullptr;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, NormPerHead) {
  SelfAttention::Options options = SmallAttention();
  options.qk_norm = QkNormKind::kPerHead;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, NormPerProjection) {
  SelfAttention::Options options = SmallAttention();
  options.qk_norm = QkNormKind::kPerProjection;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, ClipAfterTheNorm) {
  SelfAttention::Options options = SmallAttention();
  options.qk_norm = QkNormKind::kPerProjection;
  options.clip_qkv = 0.7;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, Biases) {
  SelfAttention::Options options = SmallAttention();
  options.bias = true;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, Window) {
  SelfAttention::Options options = SmallAttention();
  options.attention.window = 3;
  ExpectReference(options);
}

TEST_F(SelfAttentionTest, EmptyDocumentsAndBatches) {
  ExpectReference(SmallAttention(), {0, 0, 4, 4, 7, 7});
  auto module = MakeRandom(SmallAttention());
  StepContext step(MakePackedBatch({}, {}, {0}), {});
  EXPECT_EQ((*module)(Variable(Tensor::Empty({0, 10})), step).shape(), Shape({0, 10}));
}

TEST_F(SelfAttentionTest, UnknownCoresAreNamed) {
  SelfAttention::Options options = SmallAttention();
  options.core = "sparse";
  try {
    SelfAttention module("a", options);
    FAIL() << "nothing thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kNotFound);
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("unknown attention core 'sparse'; known: dense"));
  }
}

}  // namespace
}  // namespace meshfold::testing
