#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/backend/backend.h"
#include "tests/reference/norm_softmax.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Vec;
using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// Two ulp of the exponential, and the f32 sum of a row: up to 512 additions in the one lane of
// plain scalar code.
constexpr double kTolerance = 3e-6;
constexpr double kInf = std::numeric_limits<double>::infinity();

class SoftmaxTest : public ::testing::TestWithParam<Shape> {
 protected:
  int64_t rows() const { return GetParam()[0]; }
  int64_t cols() const { return GetParam()[1]; }
  Tensor Input(const char* name, Padding padding) const {
    return RandomTensor(name, GetParam(), {.mean = 4, .stddev = 5, .padding = padding});
  }
  Vec Values(const char* name) const { return ToVector<double>(Input(name, Padding::kNone)); }
  Tensor Output(Padding padding) const { return UnwrittenTensor(GetParam(), DType::kF32, padding); }
  // Every third row is padding.
  std::vector<int> Valid() const {
    std::vector<int> valid(rows());
    for (int64_t row = 0; row < rows(); ++row) valid[row] = row % 3 != 1;
    return valid;
  }
  Tensor ValidTensor() const {
    const std::vector<int> valid = Valid();
    return MakeTensor(Vec(valid.begin(), valid.end()), {rows()}, DType::kU8);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxTest,
                         ::testing::Values(Shape{0, 4}, Shape{1, 1}, Shape{5, 8}, Shape{3, 33},
                                           Shape{70, 512}, Shape{201, 131}));

TEST_P(SoftmaxTest, ForwardAndBackward) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor x = Input("x", padding), y = Output(padding), dx = Output(padding);
        CurrentBackend().Softmax(x, y);
        CurrentBackend().Softmax(x, x);
        ExpectBitEqual(x, y, "in place");
        const Tensor dy = Input("dy", padding);
        CurrentBackend().SoftmaxBackward(y, dy, dx);
        CurrentBackend().SoftmaxBackward(y, dy, dy);
        ExpectBitEqual(dy, dx, "gradient in place");
        return std::vector<Tensor>{y, dx};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec y = reference::Softmax(Values("x"), cols());
        ExpectClose(out[0], y, kTolerance, "y");
        ExpectClose(out[1], reference::SoftmaxBackward(y, Values("dy"), cols()), kTolerance, "dx");
      });
}

TEST_P(SoftmaxTest, LogSumExp) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor lse = UnwrittenTensor({rows()});
        CurrentBackend().LogSumExp(Input("x", padding), lse);
        return std::vector<Tensor>{lse};
      },
      [&](const std::vector<Tensor>& out) {
        ExpectClose(out[0], reference::LogSumExp(Values("x"), cols()), kTolerance);
      });
}

TEST_P(SoftmaxTest, SquaredLogSumExpAndBackward) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor z = Input("z", padding), loss = UnwrittenTensor({1}),
                     all = UnwrittenTensor({1});
        const Tensor dz = Output(padding);
        CurrentBackend().SquaredLogSumExp(z, 0.125, ValidTensor(), loss);
        CurrentBackend().SquaredLogSumExp(z, 0.125, Tensor(), all);
        CurrentBackend().SquaredLogSumExpBackward(z, 0.125, ValidTensor(), MakeTensor({3}, {1}),
                                                  dz);
        return std::vector<Tensor>{loss, all, dz};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec z = Values("z");
        const std::vector<int> valid = Valid(), all(rows(), 1);
        ExpectClose(out[0], {0.125 * reference::SquaredLogSumExp(z, cols(), valid)}, kTolerance);
        ExpectClose(out[1], {0.125 * reference::SquaredLogSumExp(z, cols(), all)}, kTolerance);
        ExpectClose(out[2],
                    reference::Map(reference::SquaredLogSumExpBackward(z, cols(), valid),
                                   [](double d) { return 3 * 0.125 * d; }),
                    kTolerance, "dz");
      });
}

TEST(SoftmaxEdgeTest, LargeAndMaskedLogits) {
  const Vec x = {1e4, -1e4, 1e4, -kInf, 0, -kInf, 88, -88, 3e38, -3e38, 0, 0, -900, -900, -kInf};
  ForEachVariant(
      [&](Padding) {
        const Tensor y = UnwrittenTensor({5, 3}), lse = UnwrittenTensor({5});
        CurrentBackend().Softmax(MakeTensor(x, {5, 3}), y);
        CurrentBackend().LogSumExp(MakeTensor(x, {5, 3}), lse);
        return std::vector<Tensor>{y, lse};
      },
      [&](const std::vector<Tensor>& out) {
        ExpectClose(out[0], {0.5, 0, 0.5, 0, 1, 0, 0, 0, 1, 0, 0.5, 0.5, 0.5, 0.5, 0}, 1e-6);
        ExpectClose(out[1], {1e4 + std::log(2), 0, 3e38, std::log(2), -900 + std::log(2)}, 1e-6);
      });
}

TEST(SoftmaxEdgeTest, NaNAndAllMaskedRows) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ForEachVariant(
      [&](Padding) {
        const Tensor x = MakeTensor({1, nan, 2, nan, -kInf, -kInf, -kInf, -kInf, -kInf}, {3, 3});
        const Tensor y = UnwrittenTensor({3, 3}), lse = UnwrittenTensor({3});
        CurrentBackend().Softmax(x, y);
        CurrentBackend().LogSumExp(x, lse);
        return std::vector<Tensor>{y, lse};
      },
      [&](const std::vector<Tensor>& out) {
        for (double y : ToVector<double>(out[0])) EXPECT_TRUE(std::isnan(y));
        ExpectClose(out[1], {nan, nan, -kInf}, 1e-6);
      });
}

}  // namespace
}  // namespace meshfold
