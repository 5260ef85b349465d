#include <gtest/gtest.h>

#include <vector>

#include "core/backend/backend.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/optimizer.h"
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
using testing::Padding;
using testing::RandomTensor;
using testing::UnwrittenTensor;

class ReductionsTest : public ::testing::TestWithParam<Shape> {
 protected:
  int64_t cols() const { return GetParam().cols(); }
  Tensor Input(Padding padding) const {
    return RandomTensor("x", GetParam(), {.mean = 1, .padding = padding});
  }
  Tensor Before() const { return RandomTensor("before", {cols()}); }
};

// Chunks hold 64 rows; columns are summed 2048 at a time; square sums go by 1024 elements.
INSTANTIATE_TEST_SUITE_P(Shapes, ReductionsTest,
                         ::testing::Values(Shape{0, 5}, Shape{1, 1}, Shape{63, 7}, Shape{65, 33},
                                           Shape{2, 3000}, Shape{2, 1024}, Shape{1030, 131}));

TEST_P(ReductionsTest, ColumnSum) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor written = UnwrittenTensor({cols()}), added = Before();
        CurrentBackend().ColumnSum(Input(padding), false, written);
        CurrentBackend().ColumnSum(Input(padding), true, added);
        const Tensor once = UnwrittenTensor({cols()});
        CurrentBackend().Add(written, Before(), once);
        ExpectBitEqual(added, once, "accumulation is one addition");
        return std::vector<Tensor>{written, added};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec sum = reference::ColumnSum(ToVector<double>(Input(Padding::kNone)), cols());
        ExpectClose(out[0], sum, 1e-6);
        ExpectClose(out[1], reference::Map(sum, ToVector<double>(Before()), std::plus<>()), 1e-6);
      });
}

// The bits depend on the logical position alone: not on padding (each variant), nor on the
// instruction set, so that machines of different kinds agree on a norm.
TEST_P(ReductionsTest, BlockSquareSums) {
  const int64_t blocks = (GetParam().numel() + 1023) / 1024;
  Tensor first;
  ForEachVariant(
      [&](Padding padding) {
        const Tensor out = UnwrittenTensor({blocks}, DType::kF64);
        CurrentBackend().BlockSquareSums(Input(padding), out);
        return std::vector<Tensor>{out};
      },
      [&](const std::vector<Tensor>& out) {
        ExpectClose(out[0], reference::BlockSquareSums(ToVector<double>(Input(Padding::kNone))),
                    1e-14);
        if (!first.defined()) first = out[0];
        ExpectBitEqual(out[0], first, "other instruction set");
      });
}

TEST_P(ReductionsTest, BlocksOfASliceAreThoseOfTheWhole) {
  ForEachVariant(
      [&](Padding) {
        const Tensor flat = RandomTensor("flat", {5000});
        const Tensor whole = UnwrittenTensor({5}, DType::kF64);
        const Tensor slice = UnwrittenTensor({3}, DType::kF64);
        CurrentBackend().BlockSquareSums(flat, whole);
        CurrentBackend().BlockSquareSums(flat.Narrow(2048, 2952), slice);
        ExpectBitEqual(slice, whole.Narrow(2, 3));
        return std::vector<Tensor>{whole};
      },
      [](const std::vector<Tensor>&) {});
}

}  // namespace
}  // namespace meshfold
