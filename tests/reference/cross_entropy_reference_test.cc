// The cross-entropy reference against golden values (G5, computed by another program in f64) and
// finite differences.
#include <gtest/gtest.h>

#include "tests/reference/cross_entropy.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using testing::CosineChecksum;
using testing::ExpectGradient;
using testing::SineSequence;

TEST(CrossEntropyReferenceTest, Golden) {
  // The golden values are means over the three valid targets.
  const CrossEntropyResult result =
      CrossEntropy(SineSequence(28, .63, .1, 3), {2, -100, 6, 0}, 7, 1.0 / 3);
  EXPECT_NEAR(result.loss, 1.418055530085, 1e-11);
  EXPECT_NEAR(CosineChecksum(result.dlogits), 0.5160086894182, 1e-11);
}

TEST(CrossEntropyReferenceTest, GradientsMatchFiniteDifferences) {
  const Vec x = SineSequence(4 * 3, .4, .3), weight = SineSequence(5 * 3, .7, .2);
  const std::vector<int32_t> targets = {4, -1, 0, 2};
  const LinearCrossEntropyResult result = LinearCrossEntropy(x, weight, targets, 3, .8);
  ExpectGradient([&](const Vec& at) { return LinearCrossEntropy(at, weight, targets, 3, .8).loss; },
                 x, result.dx, "dx");
  ExpectGradient([&](const Vec& at) { return LinearCrossEntropy(x, at, targets, 3, .8).loss; },
                 weight, result.dweight, "dweight");
}

}  // namespace
}  // namespace meshfold::reference
