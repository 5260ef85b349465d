// The parts have references of their own with golden values; here, that they are put together
// right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reference/layers.h"
#include "tests/reference/numeric_gradient.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using ::meshfold::testing::SineSequence;
using ::testing::DoubleNear;
using ::testing::Pointwise;

// Rows [begin, end) of the identity of size n.
Vec IdentityRows(int64_t begin, int64_t end, int64_t n) {
  Vec out((end - begin) * n);
  for (int64_t i = begin; i < end; ++i) out[(i - begin) * n + i] = 1;
  return out;
}

// With projections that pick columns of x, what is left is norm, clip, rotation and the core.
TEST(LayersReferenceTest, SelfAttentionIsItsPartsInOrder) {
  const SelfAttentionConfig c = {.hidden_size = 8,
                                 .core = {.cu_seqlens_q = {0, 2, 5},
                                          .cu_seqlens_k = {0, 2, 5},
                                          .heads = 2,
                                          .head_dim = 2,
                                          .value_dim = 2,
                                          .scale = .5,
                                          .window = 2},
                                 .rotated_pairs = 1,
                                 .theta = 10,
                                 .q_norm_groups = 2,
                                 .k_norm_groups = 1,
                                 .norm_eps = .1,
                                 .clip = .8};
  const Vec x = SineSequence(40, .7, .3, 2), norm = {1.5, .5};
  const SelfAttentionTensors t = {.x = x,
                                  .q = IdentityRows(0, 4, 8),
                                  .k = IdentityRows(4, 6, 8),
                                  .v = IdentityRows(6, 8, 8),
                                  .o = IdentityRows(0, 4, 4),
                                  .o_bias = {1, 2, 3, 4},
                                  .q_norm = norm,
                                  .k_norm = norm};
  Vec q, k, v;
  for (int64_t row = 0; row < 5; ++row) {
    const Vec all = Row(x, row, 8);
    q.insert(q.end(), all.begin(), all.begin() + 4);
    k.insert(k.end(), all.begin() + 4, all.begin() + 6);
    v.insert(v.end(), all.begin() + 6, all.end());
  }
  const RmsNormConfig norm_config = {.cols = 2, .eps = .1};
  const RopeTables tables = MakeRopeTables(5, 1, 10);
  const std::vector<int> positions = {0, 1, 0, 1, 2};
  q = Rope(Clamp(RmsNorm(q, norm, norm_config).y, -.8, .8), 2, 2, positions, tables, 1, false);
  k = Rope(Clamp(RmsNorm(k, norm, norm_config).y, -.8, .8), 1, 2, positions, tables, 1, false);
  v = Clamp(v, -.8, .8);
  const Vec expected = AddRowVector(Attention(q, k, v, c.core).out, {1, 2, 3, 4});
  EXPECT_THAT(SelfAttention(t, c), Pointwise(DoubleNear(1e-14), expected));
}

TEST(LayersReferenceTest, SwiGluMlpByHand) {
  // x = 2; gate 2 + 1 = 3, up 2 * -1 = -2; down 0.5, bias 10.
  const SwiGluMlpTensors t = {
      .x = {2}, .gate_up = {1, -1}, .gate_up_bias = {1, 0}, .down = {.5}, .down_bias = {10}};
  EXPECT_NEAR(SwiGluMlp(t, 1, 1)[0], 10 - .5 * 2 * 3 / (1 + std::exp(-3.0)), 1e-14);
}

// A norm by ones of rows of length sqrt(n) changes nothing.
TEST(LayersReferenceTest, HeadLossIsNormThenCrossEntropy) {
  const Vec x = {1, -1, 1, 1}, w = {.5, .25, -1, 2, 3, 1};
  EXPECT_NEAR(HeadLoss(x, {1, 1}, w, {2, -1}, 0, 2.0),
              2 * CrossEntropy({.25, -3, 2, .75, 1, 4}, {2, -1}, 3, 1.0).loss, 1e-12);
}

TEST(NumericGradientTest, IsTheGradient) {
  const Vec gradient = NumericGradient(
      [](const Vec& x) { return x[0] * x[0] * x[1] + std::sin(x[2]); }, {3, -2, 0.5});
  EXPECT_THAT(gradient, Pointwise(DoubleNear(1e-8), Vec{-12, 9, std::cos(0.5)}));
}

}  // namespace
}  // namespace meshfold::reference
