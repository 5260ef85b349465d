#include "tests/reference/cross_entropy.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Vec;
using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeIds;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// Two products of up to a thousand terms around a softmax.
constexpr double kTolerance = 2e-6;

struct CrossEntropyCase {
  int64_t tokens, vocab, dim;
  DType dtype = DType::kF32;
};

std::vector<int32_t> Targets(const CrossEntropyCase& c) {
  std::vector<int32_t> targets;
  for (int64_t t = 0; t < c.tokens; ++t) {
    // Every third is ignored; first and last class occur.
    targets.push_back(t % 3 == 1 ? -100 : static_cast<int32_t>(t * 7 % c.vocab));
  }
  if (c.tokens > 0) targets.back() = static_cast<int32_t>(c.vocab - 1);
  return targets;
}

LinearCrossEntropyArgs Args(const CrossEntropyCase& c, Padding padding) {
  LinearCrossEntropyArgs args;
  args.x = RandomTensor("x", {c.tokens, c.dim}, {.padding = padding});
  args.weight = RandomTensor("w", {c.vocab, c.dim}, {.dtype = c.dtype, .padding = padding});
  args.targets = MakeIds(Targets(c), {c.tokens});
  args.scale = 0.37;
  args.loss = UnwrittenTensor({1});
  return args;
}

class CrossEntropyTest : public ::testing::TestWithParam<CrossEntropyCase> {};

// Chunks have 2048 rows for small vocabularies and 128 for the largest.
INSTANTIATE_TEST_SUITE_P(Shapes, CrossEntropyTest,
                         ::testing::Values(CrossEntropyCase{0, 5, 3}, CrossEntropyCase{1, 1, 4},
                                           CrossEntropyCase{7, 13, 5},
                                           CrossEntropyCase{67, 256, 20},
                                           CrossEntropyCase{2100, 17, 6},
                                           CrossEntropyCase{131, 33000, 3},
                                           CrossEntropyCase{40, 50, 24, DType::kBF16},
                                           CrossEntropyCase{40, 50, 24, DType::kF16}));

TEST_P(CrossEntropyTest, LossAndGradientsMatchTheReference) {
  const auto [tokens, vocab, dim, dtype] = GetParam();
  ForEachVariant(
      [&](Padding padding) {
        LinearCrossEntropyArgs args = Args(GetParam(), padding);
        args.dx = UnwrittenTensor({tokens, dim}, DType::kF32, padding);
        args.dweight = UnwrittenTensor({vocab, dim}, DType::kF32, padding);
        CurrentBackend().LinearCrossEntropy(args);
        LinearCrossEntropyArgs more = Args(GetParam(), padding);
        more.logits = UnwrittenTensor({tokens, vocab}, DType::kF32, padding);
        more.dweight = RandomTensor("dw", {vocab, dim}, {.padding = padding});
        more.accumulate_dweight = true;
        CurrentBackend().LinearCrossEntropy(more);
        ExpectBitEqual(more.loss, args.loss, "loss with other outputs");
        LinearCrossEntropyArgs loss_only = Args(GetParam(), padding);
        CurrentBackend().LinearCrossEntropy(loss_only);
        ExpectBitEqual(loss_only.loss, args.loss, "loss alone");
        return std::vector<Tensor>{args.loss, args.dx, args.dweight, more.logits, more.dweight};
      },
      [&](const std::vector<Tensor>& out) {
        const LinearCrossEntropyArgs args = Args(GetParam(), Padding::kNone);
        const auto expected =
            reference::LinearCrossEntropy(ToVector<double>(args.x), ToVector<double>(args.weight),
                                          Targets(GetParam()), dim, args.scale);
        ExpectClose(out[0], {expected.loss}, kTolerance, "loss");
        ExpectClose(out[1], expected.dx, kTolerance, "dx");
        ExpectClose(out[2], expected.dweight, kTolerance, "dweight");
        ExpectClose(out[3], expected.logits, kTolerance, "logits");
        const Vec before = ToVector<double>(RandomTensor("dw", {vocab, dim}));
        ExpectClose(out[4], reference::Map(expected.dweight, before, std::plus<>()), kTolerance,
                    "accumulated dweight");
      });
}

// G5: with the identity as weight, x is the logits and dx their gradient.
TEST(CrossEntropyGoldenTest, Golden) {
  ScopedTestContext context;
  LinearCrossEntropyArgs args;
  args.x = MakeTensor(testing::SineSequence(28, .63, .1, 3), {4, 7});
  Vec identity(49);
  for (int i = 0; i < 7; ++i) identity[i * 8] = 1;
  args.weight = MakeTensor(identity, {7, 7});
  args.targets = MakeIds({2, -100, 6, 0}, {4});
  args.scale = 1.0 / 3;
  args.loss = UnwrittenTensor({1});
  args.dx = UnwrittenTensor({4, 7});
  context.backend().LinearCrossEntropy(args);
  EXPECT_NEAR(args.loss.data<float>()[0], 1.418055530085, 1e-6);
  EXPECT_NEAR(testing::CosineChecksum(ToVector<double>(args.dx)), 0.5160086894182, 1e-6);
}

// Logits far beyond the range of e^x, and probabilities that round to 0 and 1.
TEST(CrossEntropyEdgeTest, LargeLogitsStayFinite) {
  ScopedTestContext context;
  LinearCrossEntropyArgs args;
  args.x = MakeTensor({1000, -1000}, {2, 1});
  args.weight = MakeTensor({1, 0, -1}, {3, 1});
  args.targets = MakeIds({0, 0}, {2});
  args.loss = UnwrittenTensor({1});
  args.dx = UnwrittenTensor({2, 1});
  context.backend().LinearCrossEntropy(args);
  ExpectClose(args.loss, Vec{2000}, 0);
  ExpectClose(args.dx, Vec{0, -2}, 0);
}

TEST(CrossEntropyEdgeTest, AllTargetsIgnoredGiveZero) {
  ScopedTestContext context;
  LinearCrossEntropyArgs args = Args({5, 9, 4}, Padding::kNone);
  args.targets = MakeIds(std::vector<int32_t>(5, -1), {5});
  args.dx = UnwrittenTensor({5, 4});
  args.dweight = UnwrittenTensor({9, 4});
  context.backend().LinearCrossEntropy(args);
  ExpectClose(args.loss, Vec{0}, 0);
  ExpectClose(args.dx, Vec(20), 0);
  ExpectClose(args.dweight, Vec(36), 0);
}

TEST(CrossEntropyEdgeTest, NaNReachesTheLoss) {
  ScopedTestContext context;
  for (int64_t at : {0, 3, 39}) {
    LinearCrossEntropyArgs args = Args({1, 40, 1}, Padding::kNone);
    args.weight.data<float>()[at] = std::numeric_limits<float>::quiet_NaN();
    context.backend().LinearCrossEntropy(args);
    EXPECT_TRUE(std::isnan(args.loss.data<float>()[0])) << "class " << at;
  }
}

TEST(CrossEntropyDeathTest, TargetOutOfRange) {
  ScopedTestContext context;
  LinearCrossEntropyArgs args = Args({2, 9, 4}, Padding::kNone);
  args.targets = MakeIds({3, 9}, {2});
  EXPECT_DEATH(context.backend().LinearCrossEntropy(args), "target of row 1");
}

}  // namespace
}  // namespace meshfold
