// Runs on a device where the build and the machine have one.
#include <gtest/gtest.h>

#include "tests/build/cuda_add.h"

namespace meshfold::build_test {
namespace {

TEST(CudaToolchainTest, RunsAKernel) {
  const absl::StatusOr<float> sum = AddOnDevice(1, 2);
  if (absl::IsUnavailable(sum.status())) GTEST_SKIP() << sum.status();
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ(*sum, 3);
}

}  // namespace
}  // namespace meshfold::build_test
