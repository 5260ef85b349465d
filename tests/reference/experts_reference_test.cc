// The reference of the experts: SwiGLU golden values (G4, computed by another program in f64) and
// finite differences.
#include <gtest/gtest.h>

#include "tests/reference/experts.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using testing::CosineChecksum;
using testing::Dot;
using testing::ExpectGradient;
using testing::SineSequence;

TEST(ExpertsReferenceTest, ActivationGolden) {
  Vec hidden = SineSequence(12, .8, .3, 3);
  const Vec up = SineSequence(12, .55, .9, 2), da = SineSequence(12, .21, .5);
  hidden.insert(hidden.end(), up.begin(), up.end());
  EXPECT_NEAR(CosineChecksum(Activation(hidden, 12)), 9.402785125933, 1e-11);
  Vec dg, du;
  for (int i = 0; i < 12; ++i) {
    dg.push_back(da[i] * up[i] * SiluSlope(hidden[i]));
    du.push_back(da[i] * Silu(hidden[i]));
  }
  EXPECT_NEAR(CosineChecksum(dg), 3.979706284533, 1e-11);
  EXPECT_NEAR(CosineChecksum(du), 3.233960762798, 1e-11);
}

TEST(ExpertsReferenceTest, GradientsMatchFiniteDifferences) {
  ExpertTensors t;
  t.dim = 3;
  t.features = 2;
  t.offsets = {0, 2, 2, 5};
  t.x = SineSequence(5 * 3, .45, .3);
  t.row_weights = SineSequence(5, .9, .4);
  for (int g = 0; g < 3; ++g) {
    t.gate_up.push_back(SineSequence(4 * 3, .7 + g, .1));
    t.down.push_back(SineSequence(3 * 2, .3 + g, .6));
  }
  const Vec dy = SineSequence(5 * 3, .33, .2);
  const ExpertsGradients g = ExpertsBackward(t, dy);
  const auto check = [&](Vec& parameter, const Vec& gradient, const char* what) {
    const Vec at = parameter;
    ExpectGradient(
        [&](const Vec& x) {
          parameter = x;
          return Dot(Experts(t).y, dy);
        },
        at, gradient, what);
    parameter = at;
  };
  check(t.x, g.dx, "dx");
  check(t.row_weights, g.drow_weights, "drow_weights");
  for (size_t e : {0, 2}) {
    check(t.gate_up[e], g.dgate_up[e], "dgate_up");
    check(t.down[e], g.ddown[e], "ddown");
  }
  EXPECT_EQ(g.dgate_up[1], Vec(12));
}

}  // namespace
}  // namespace meshfold::reference
