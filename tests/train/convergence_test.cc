// Losses of whole training runs against committed ones: what guards convergence in CI.
#include "tests/train/convergence.h"

#include <cmath>

#include "gtest/gtest.h"

namespace meshfold::train {
namespace {

constexpr int64_t kSteps = 60;

class ConvergenceTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    tokens_path_ = ::testing::TempDir() + "/jargon_" + GetParam() + ".safetensors";
    absl::Status written = WriteConvergenceTokens(tokens_path_);
    ASSERT_TRUE(written.ok()) << written;
  }
  std::string tokens_path_;
};

// Other machines have other vector widths and libm: rounding differs and training amplifies it.
TEST_P(ConvergenceTest, EveryLossEqualsTheCommittedOne) {
  absl::StatusOr<std::vector<double>> losses = RunConvergence(GetParam(), tokens_path_, kSteps);
  ASSERT_TRUE(losses.ok()) << losses.status();
  absl::StatusOr<std::vector<double>> expected = ReadConvergence(GetParam());
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(losses->size(), expected->size());
  for (size_t step = 0; step < losses->size(); ++step) {
    double tolerance = step < 10 ? 1e-4 : 1e-2;
    EXPECT_NEAR((*losses)[step], (*expected)[step], tolerance * (*expected)[step])
        << "step " << step + 1;
  }
  EXPECT_LT(losses->back(), 0.7 * losses->front()) << "the model does not learn";
}

TEST_P(ConvergenceTest, TwoRunsAreBitwiseEqual) {
  absl::StatusOr<std::vector<double>> first = RunConvergence(GetParam(), tokens_path_, 8);
  absl::StatusOr<std::vector<double>> second = RunConvergence(GetParam(), tokens_path_, 8);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_EQ(*first, *second);
}

INSTANTIATE_TEST_SUITE_P(Cases, ConvergenceTest, ::testing::ValuesIn(ConvergenceCases()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace meshfold::train
