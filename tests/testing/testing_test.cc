// The helpers must notice what they are there to notice.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/testing/expect_close.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

class TestingTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

TEST_F(TestingTest, ContextNamesTheBackend) {
  EXPECT_EQ(CurrentBackend().name(), "cpu");
  EXPECT_EQ(CurrentContext().num_threads, 1);
  context_.context().num_threads = 2;
  EXPECT_EQ(CurrentContext().num_threads, 2);
}

TEST_F(TestingTest, RandomTensorsDependOnNameAndIndexOnly) {
  const Tensor whole = RandomTensor("x", {4, 5});
  EXPECT_EQ(ToVector<float>(whole),
            ToVector<float>(RandomTensor("x", {4, 5}, {.padding = Padding::kGuarded})));
  EXPECT_EQ(ToVector<float>(whole.Narrow(0, 2)), ToVector<float>(RandomTensor("x", {2, 5})));
  EXPECT_NE(ToVector<float>(whole), ToVector<float>(RandomTensor("y", {4, 5})));
}

TEST_F(TestingTest, CloseTensorsPass) {
  const Tensor tensor = MakeTensor({1, -100}, {2});
  ExpectClose(tensor, std::vector<double>{1.0005, -100}, 1e-5);
  ExpectClose(MakeTensor({0, 0}, {2}), std::vector<double>{0, 1e-40}, 1e-6);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ExpectClose(MakeTensor({nan, HUGE_VAL, 1}, {3}), std::vector<double>{nan, HUGE_VAL, 1}, 1e-6);
}

TEST_F(TestingTest, DistantTensorsFail) {
  EXPECT_NONFATAL_FAILURE(
      ExpectClose(MakeTensor({1, -100}, {2}), std::vector<double>{1.01, -100}, 1e-5, "loss"),
      "element 0 is 1, expected 1.01");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NONFATAL_FAILURE(ExpectClose(UnwrittenTensor({2}), std::vector<double>{1, 2}, 1e-5),
                          "is nan, expected 1");
  EXPECT_NONFATAL_FAILURE(ExpectClose(MakeTensor({1, 2}, {2}), std::vector<double>{1, nan}, 1e-5),
                          "expected nan");
  EXPECT_NONFATAL_FAILURE(
      ExpectClose(MakeTensor({1, 2}, {2}), std::vector<double>{1, HUGE_VAL}, 1e-5), "expected inf");
}

TEST_F(TestingTest, WritingBetweenRowsFails) {
  const Tensor tensor = MakeTensor({1, 2}, {2, 1}, DType::kF32, Padding::kGuarded);
  EXPECT_TRUE(GuardIsIntact(tensor));
  tensor.row<float>(0)[1] = 0;
  EXPECT_NONFATAL_FAILURE(ExpectClose(tensor, std::vector<double>{1, 2}, 1e-5), "between rows");
}

TEST_F(TestingTest, BitEqualSeesSignsOfZero) {
  ExpectBitEqual(MakeTensor({0, 1}, {2, 1}),
                 MakeTensor({0, 1}, {2, 1}, DType::kF32, Padding::kGuarded));
  EXPECT_NONFATAL_FAILURE(ExpectBitEqual(MakeTensor({0, 1}, {2}), MakeTensor({-0.0, 1}, {2})),
                          "element 0");
}

TEST_F(TestingTest, WrongGradientsFail) {
  const ScalarFunction cube = [](const std::vector<double>& x) {
    return x[0] * x[0] * x[0] + 2 * x[1];
  };
  ExpectGradient(cube, {1.5, 0.3}, {6.75, 2});
  ::testing::TestPartResultArray failures;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    ExpectGradient(cube, {1.5, 0.3}, {6.76, 2});
  }
  EXPECT_EQ(failures.size(), 2);  // the coordinate and the direction
}

TEST(FiniteDifferenceTest, GoldenInputs) {
  EXPECT_DOUBLE_EQ(SineSequence(3, 0.5, 0.1, 2)[2], 2 * std::sin(1.1));
  EXPECT_DOUBLE_EQ(CosineChecksum({1, 2, 0}), 1 + 2 * std::cos(0.5));
  EXPECT_DOUBLE_EQ(RelativeError({3, 4}, {0, 5}), std::sqrt(10.0) / 5);
}

}  // namespace
}  // namespace meshfold::testing
