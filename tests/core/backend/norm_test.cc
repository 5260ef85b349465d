#include <gtest/gtest.h>

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
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// A sum of n squares in f32 lanes errs by about sqrt(n) 2^-24 / lanes; sums over a few hundred rows
// by a few more.
constexpr double kTolerance = 1e-6;

struct NormCase {
  int64_t rows, cols, groups;
  bool zero_centered = false;
  DType weight_dtype = DType::kF32;
};

class RmsNormTest : public ::testing::TestWithParam<NormCase> {
 protected:
  Tensor Input(const char* name, Padding padding) const {
    return RandomTensor(name, {GetParam().rows, GetParam().cols},
                        {.mean = 0.3, .stddev = 2, .padding = padding});
  }
  Vec Values(const char* name) const { return ToVector<double>(Input(name, Padding::kNone)); }
  Tensor Weight() const {
    return RandomTensor("weight", {GetParam().cols / GetParam().groups},
                        {.mean = 1, .stddev = 0.5, .dtype = GetParam().weight_dtype});
  }
  RmsNormArgs Args(Padding padding) const {
    RmsNormArgs args;
    args.x = Input("x", padding);
    args.weight = Weight();
    args.eps = 1e-3;
    args.groups = GetParam().groups;
    args.zero_centered = GetParam().zero_centered;
    return args;
  }
  reference::RmsNormConfig Config() const {
    return {.cols = GetParam().cols,
            .groups = GetParam().groups,
            .eps = 1e-3,
            .zero_centered = GetParam().zero_centered};
  }
  Tensor Output(Padding padding) const {
    return UnwrittenTensor({GetParam().rows, GetParam().cols}, DType::kF32, padding);
  }
  Tensor Rstd(Padding padding) const {
    return UnwrittenTensor({GetParam().rows, GetParam().groups}, DType::kF32, padding);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNormTest,
                         ::testing::Values(NormCase{0, 8, 1}, NormCase{1, 3, 1}, NormCase{3, 33, 1},
                                           NormCase{200, 512, 1}, NormCase{131, 517, 1, true},
                                           NormCase{70, 4 * 37, 4, false, DType::kBF16},
                                           NormCase{65, 3 * 64, 3, true, DType::kF16}));

TEST_P(RmsNormTest, Forward) {
  ForEachVariant(
      [&](Padding padding) {
        const RmsNormArgs args = Args(padding);
        const Tensor y = Output(padding), rstd = Rstd(padding);
        CurrentBackend().RmsNorm(args, y, rstd, Tensor());
        CurrentBackend().RmsNorm(args, args.x, Tensor(), Tensor());
        ExpectBitEqual(args.x, y, "in place");
        return std::vector<Tensor>{y, rstd};
      },
      [&](const std::vector<Tensor>& out) {
        const auto expected = reference::RmsNorm(Values("x"), ToVector<double>(Weight()), Config());
        ExpectClose(out[0], expected.y, kTolerance, "y");
        ExpectClose(out[1], expected.rstd, kTolerance, "rstd");
      });
}

TEST_P(RmsNormTest, ForwardWithResidual) {
  ForEachVariant(
      [&](Padding padding) {
        RmsNormArgs args = Args(padding);
        args.residual = Input("residual", padding);
        const Tensor y = Output(padding), rstd = Rstd(padding), sum = Output(padding);
        CurrentBackend().RmsNorm(args, y, rstd, sum);
        const Tensor y2 = Output(padding);
        CurrentBackend().RmsNorm(args, y2, Tensor(), args.residual);
        ExpectBitEqual(y2, y, "sum onto the residual");
        return std::vector<Tensor>{y, rstd, sum, args.residual};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec sum = reference::Map(Values("x"), Values("residual"), std::plus<>());
        const auto expected = reference::RmsNorm(sum, ToVector<double>(Weight()), Config());
        ExpectClose(out[0], expected.y, kTolerance, "y");
        ExpectClose(out[1], expected.rstd, kTolerance, "rstd");
        ExpectClose(out[2], sum, kTolerance, "sum");
        ExpectClose(out[3], sum, kTolerance, "sum onto the residual");
      });
}

TEST_P(RmsNormTest, Backward) {
  ForEachVariant(
      [&](Padding padding) {
        const RmsNormArgs args = Args(padding);
        const Tensor rstd = Rstd(padding), dy = Input("dy", padding);
        CurrentBackend().RmsNorm(args, Output(padding), rstd, Tensor());
        const Tensor dx = Output(padding), dweight = UnwrittenTensor({args.weight.numel()});
        CurrentBackend().RmsNormBackward(args, rstd, dy, Tensor(), dx, dweight, false);
        // Accumulation, the residual's gradient, and dx onto dy.
        const Tensor dsum = Input("dsum", padding);
        const Tensor twice = RandomTensor("dweight", {args.weight.numel()});
        CurrentBackend().RmsNormBackward(args, rstd, dy, dsum, dy, twice, true);
        const Tensor dx_alone = Output(padding);
        CurrentBackend().RmsNormBackward(args, rstd, Input("dy", padding), Tensor(), dx_alone,
                                         Tensor(), false);
        ExpectBitEqual(dx_alone, dx, "without dweight");
        return std::vector<Tensor>{dx, dweight, dy, twice};
      },
      [&](const std::vector<Tensor>& out) {
        auto expected = reference::RmsNormBackward(Values("x"), ToVector<double>(Weight()),
                                                   Values("dy"), Config());
        ExpectClose(out[0], expected.dx, kTolerance, "dx");
        ExpectClose(out[1], expected.dweight, kTolerance, "dweight");
        ExpectClose(out[2], reference::Map(expected.dx, Values("dsum"), std::plus<>()), kTolerance,
                    "dx + dsum");
        const Vec before = ToVector<double>(RandomTensor("dweight", {out[3].numel()}));
        ExpectClose(out[3], reference::Map(expected.dweight, before, std::plus<>()), kTolerance,
                    "accumulated dweight");
      });
}

// Padding rows of a packed batch are zero: they must give zero, not NaN.
TEST(RmsNormEdgeTest, ZeroRowsStayZero) {
  ScopedTestContext context;
  RmsNormArgs args;
  args.x = testing::MakeTensor(Vec(40), {2, 20});
  args.weight = testing::MakeTensor(Vec(20, 1), {20});
  const Tensor y = UnwrittenTensor({2, 20}), rstd = UnwrittenTensor({2, 1});
  context.backend().RmsNorm(args, y, rstd, Tensor());
  ExpectClose(y, Vec(40), 0);
  ExpectClose(rstd, Vec(2, 1000), 1e-6);
}

TEST(RmsNormEdgeTest, SteadyStateAllocatesNothing) {
  ScopedTestContext context;
  RmsNormArgs args;
  args.x = RandomTensor("x", {5, 20});
  args.weight = RandomTensor("w", {20});
  const Tensor y = UnwrittenTensor({5, 20}), rstd = UnwrittenTensor({5, 1});
  const int64_t before = SystemHostAllocator().stats().num_allocations;
  context.backend().RmsNorm(args, y, rstd, Tensor());
  EXPECT_EQ(SystemHostAllocator().stats().num_allocations, before);
}

}  // namespace
}  // namespace meshfold
