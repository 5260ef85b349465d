// The attention reference against golden values (G6: 6 tokens, 4 heads, 2 KV heads; computed by
// another program in f64) and finite differences.
#include <gtest/gtest.h>

#include "tests/reference/attention.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using testing::CosineChecksum;
using testing::Dot;
using testing::ExpectGradient;
using testing::SineSequence;

struct Golden {
  AttentionConfig config{{0, 6}, {0, 6}, 4, 2, 4, 4, .5, 0};
  Vec q = SineSequence(96, .31, .1, 2), k = SineSequence(48, .47, .6, 2);
  Vec v = SineSequence(48, .59, .2), dout = SineSequence(96, .23, .7);
};

TEST(AttentionReferenceTest, CausalGolden) {
  const Golden g;
  const AttentionResult result = Attention(g.q, g.k, g.v, g.config);
  EXPECT_NEAR(CosineChecksum(result.out), -2.777539286902, 1e-11);
  EXPECT_NEAR(CosineChecksum(result.lse), -5.188628187379, 1e-11);
  const AttentionGradients gradients = AttentionBackward(g.q, g.k, g.v, g.dout, g.config);
  EXPECT_NEAR(CosineChecksum(gradients.dq), -2.558484116571, 1e-11);
  EXPECT_NEAR(CosineChecksum(gradients.dk), 3.403885370519, 1e-11);
  EXPECT_NEAR(CosineChecksum(gradients.dv), -0.1092449488894, 1e-11);
}

TEST(AttentionReferenceTest, WindowGolden) {
  Golden g;
  g.config.window = 3;
  EXPECT_NEAR(CosineChecksum(Attention(g.q, g.k, g.v, g.config).out), -1.228273154590, 1e-11);
  const AttentionGradients gradients = AttentionBackward(g.q, g.k, g.v, g.dout, g.config);
  EXPECT_NEAR(CosineChecksum(gradients.dq), -2.349649248631, 1e-11);
  EXPECT_NEAR(CosineChecksum(gradients.dk), 0.949314278823, 1e-11);
  EXPECT_NEAR(CosineChecksum(gradients.dv), -6.429355774e-2, 1e-11);
}

// Two documents, another value dim, fewer queries than keys.
TEST(AttentionReferenceTest, GradientsMatchFiniteDifferences) {
  const AttentionConfig config{{0, 2, 5}, {0, 4, 7}, 2, 1, 3, 2, .7, 2};
  const Vec q = SineSequence(5 * 6, .31, .1), k = SineSequence(7 * 3, .47, .6);
  const Vec v = SineSequence(7 * 2, .59, .2), dout = SineSequence(5 * 4, .23, .7);
  const AttentionGradients g = AttentionBackward(q, k, v, dout, config);
  ExpectGradient([&](const Vec& x) { return Dot(Attention(x, k, v, config).out, dout); }, q, g.dq,
                 "dq");
  ExpectGradient([&](const Vec& x) { return Dot(Attention(q, x, v, config).out, dout); }, k, g.dk,
                 "dk");
  ExpectGradient([&](const Vec& x) { return Dot(Attention(q, k, x, config).out, dout); }, v, g.dv,
                 "dv");
}

}  // namespace
}  // namespace meshfold::reference
