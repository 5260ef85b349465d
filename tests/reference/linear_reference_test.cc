#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/reference/linear.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using ::meshfold::testing::Dot;
using ::meshfold::testing::ExpectGradient;
using ::meshfold::testing::SineSequence;
using ::testing::ElementsAre;

TEST(LinearReferenceTest, ByHand) {
  // [1 2 3] and [4 5 6] against rows [1 0 -1] and [2 1 0].
  EXPECT_THAT(Linear({1, 2, 3, 4, 5, 6}, {1, 0, -1, 2, 1, 0}, 3, 2), ElementsAre(-2, 4, -2, 13));
  EXPECT_THAT(Transposed({1, 2, 3, 4, 5, 6}, 2, 3), ElementsAre(1, 4, 2, 5, 3, 6));
}

TEST(LinearReferenceTest, GradientsMatchFiniteDifferences) {
  const Vec x = SineSequence(12, .7, .2), w = SineSequence(20, .9, .1),
            dy = SineSequence(15, .4, 1);
  const LinearGradients gradients = LinearBackward(x, w, dy, 4, 5);
  ExpectGradient([&](const Vec& v) { return Dot(dy, Linear(v, w, 4, 5)); }, x, gradients.dx, "dx");
  ExpectGradient([&](const Vec& v) { return Dot(dy, Linear(x, v, 4, 5)); }, w, gradients.dw, "dw");
}

}  // namespace
}  // namespace meshfold::reference
