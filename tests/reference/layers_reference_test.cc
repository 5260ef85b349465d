// The attention core of the layer reference against golden values (G6: 6 tokens, 4 heads, 2 KV
// heads) computed by another program in f64.
#include <gtest/gtest.h>

#include "tests/reference/layers.h"
#include "tests/reference/numeric_gradient.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using ::meshfold::testing::CosineChecksum;
using ::meshfold::testing::Dot;
using ::meshfold::testing::SineSequence;

constexpr int64_t kTokens = 6, kHeads = 4, kKvHeads = 2, kDim = 4;

struct CoreGolden {
  Vec q = SineSequence(kTokens * kHeads * kDim, .31, .1, 2);
  Vec k = SineSequence(kTokens * kKvHeads * kDim, .47, .6, 2);
  Vec v = SineSequence(kTokens * kKvHeads * kDim, .59, .2);
  Vec dout = SineSequence(kTokens * kHeads * kDim, .23, .7);
  AttentionConfig config = {.heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = kDim,
                            .value_dim = kDim,
                            .scale = .5,
                            .cu_seqlens = {0, kTokens}};

  double Loss(const Vec& q_moved, const Vec& k_moved, const Vec& v_moved) const {
    return Dot(dout, CausalAttention(q_moved, k_moved, v_moved, config));
  }
  void ExpectChecksums(double out, double dq, double dk, double dv) const {
    EXPECT_NEAR(CosineChecksum(CausalAttention(q, k, v, config)), out, 1e-11);
    const auto checksum = [](const Vec& gradient) { return CosineChecksum(gradient); };
    EXPECT_NEAR(checksum(NumericGradient([&](const Vec& x) { return Loss(x, k, v); }, q)), dq,
                1e-8);
    EXPECT_NEAR(checksum(NumericGradient([&](const Vec& x) { return Loss(q, x, v); }, k)), dk,
                1e-8);
    EXPECT_NEAR(checksum(NumericGradient([&](const Vec& x) { return Loss(q, k, x); }, v)), dv,
                1e-8);
  }
};

TEST(LayersReferenceTest, CausalGolden) {
  CoreGolden().ExpectChecksums(-2.777539286902, -2.558484116571, 3.403885370519, -0.1092449488894);
}

TEST(LayersReferenceTest, WindowGolden) {
  CoreGolden golden;
  golden.config.window = 3;
  golden.ExpectChecksums(-1.228273154590, -2.349649248631, 0.949314278823, -6.429355774e-2);
}

TEST(LayersReferenceTest, DocumentsAreSeparate) {
  CoreGolden g;
  g.config.cu_seqlens = {0, 2, kTokens};
  const Vec packed = CausalAttention(g.q, g.k, g.v, g.config);
  const auto second = [](const Vec& x) { return Vec(x.begin() + x.size() / kTokens * 2, x.end()); };
  AttentionConfig alone = g.config;
  alone.cu_seqlens = {0, kTokens - 2};
  EXPECT_EQ(CausalAttention(second(g.q), second(g.k), second(g.v), alone), second(packed));
}

// G5: 4 rows of 7 logits, one label ignored, mean over the rest.
TEST(LayersReferenceTest, CrossEntropyGolden) {
  const Vec z = SineSequence(28, .63, .1, 3);
  const std::vector<int> targets = {2, -100, 6, 0};
  EXPECT_NEAR(CrossEntropy(z, 7, targets) / 3, 1.418055530085, 1e-11);
  const Vec dz = CrossEntropyBackward(z, 7, targets);
  EXPECT_NEAR(CosineChecksum(dz) / 3, 0.5160086894182, 1e-11);
}

// A norm by ones of rows of length sqrt(n) changes nothing: the head is then its cross-entropy.
TEST(LayersReferenceTest, HeadLossIsNormThenLinearThenCrossEntropy) {
  const Vec x = {1, -1, 1, 1}, w = {.5, .25, -1, 2, 3, 1};
  EXPECT_NEAR(HeadLoss(x, {1, 1}, w, {2, -1}, 0, 2.0),
              2 * CrossEntropy({.25, -3, 2, .75, 1, 4}, 3, {2, -1}), 1e-12);
}

TEST(LayersReferenceTest, ExpertsOfOneGroupAreAnMlpTimesTheWeights) {
  const SwiGluMlpTensors t = {.x = SineSequence(6, .7, .2),
                              .gate_up = SineSequence(24, .3, .5),
                              .down = SineSequence(12, .9, .1)};
  const Vec y = SwiGluMlp(t, 3, 4);
  EXPECT_EQ(Experts({t.x, t.gate_up, t.down, {}}, {0, 2}, 3, 4), y);
  // The second of two groups, the first one empty, with weights.
  Vec gate_up(24), down(12);
  gate_up.insert(gate_up.end(), t.gate_up.begin(), t.gate_up.end());
  down.insert(down.end(), t.down.begin(), t.down.end());
  const Vec weighted = Experts({t.x, gate_up, down, {2, -1}}, {0, 0, 2}, 3, 4);
  for (size_t i = 0; i < 6; ++i) EXPECT_DOUBLE_EQ(weighted[i], y[i] * (i < 3 ? 2 : -1));
}

}  // namespace
}  // namespace meshfold::reference
