#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "tests/reference/linear.h"
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

// A chain of k <= 256 multiply-adds errs by about sqrt(k) 2^-24 / 6 of the largest result, and the
// worst of thousands of elements by five times that.
constexpr double kTolerance = 1e-6;

struct GemmCase {
  int64_t m, n, k;
  DType b_dtype = DType::kF32;
  DType a_dtype = DType::kF32;
};

class GemmTest : public ::testing::TestWithParam<GemmCase> {
 protected:
  Tensor A(bool transposed, Padding padding) const {
    const auto [m, n, k, b_dtype, a_dtype] = GetParam();
    return RandomTensor("a", transposed ? Shape{k, m} : Shape{m, k},
                        {.dtype = a_dtype, .padding = padding});
  }
  Tensor B(bool transposed, Padding padding) const {
    const auto [m, n, k, b_dtype, a_dtype] = GetParam();
    return RandomTensor("b", transposed ? Shape{n, k} : Shape{k, n},
                        {.dtype = b_dtype, .padding = padding});
  }
  Vec Expected(bool transpose_a, bool transpose_b) const {
    const auto [m, n, k, b_dtype, a_dtype] = GetParam();
    Vec a = ToVector<double>(A(transpose_a, Padding::kNone));
    Vec b = ToVector<double>(B(transpose_b, Padding::kNone));
    if (transpose_a) a = reference::Transposed(a, k, m);
    if (transpose_b) b = reference::Transposed(b, n, k);
    return reference::MatMul(a, b, m, k, n);
  }
};

// Around tiles (8 or 4 rows, 48 or 24 columns), vectors, depth blocks (256), row blocks (256, 512)
// and column blocks (4096).
INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    ::testing::Values(GemmCase{1, 1, 1}, GemmCase{8, 48, 64}, GemmCase{9, 49, 3},
                      GemmCase{3, 7, 515}, GemmCase{17, 130, 33}, GemmCase{130, 66, 1030},
                      GemmCase{515, 19, 20}, GemmCase{600, 70, 530}, GemmCase{5, 4100, 9},
                      GemmCase{520, 4099, 2}, GemmCase{0, 5, 3}, GemmCase{5, 0, 3},
                      GemmCase{5, 3, 0}, GemmCase{33, 50, 70, DType::kBF16},
                      GemmCase{33, 50, 70, DType::kF16}, GemmCase{520, 31, 9, DType::kBF16},
                      GemmCase{6, 50, 19, DType::kF32, DType::kBF16},
                      GemmCase{6, 50, 19, DType::kF16, DType::kF16}));

TEST_P(GemmTest, EveryTranspositionMatchesTheReference) {
  const int64_t m = GetParam().m, n = GetParam().n;
  for (bool transpose_a : {false, true}) {
    for (bool transpose_b : {false, true}) {
      SCOPED_TRACE(std::string("a ") + (transpose_a ? "T" : "N") + " b " +
                   (transpose_b ? "T" : "N"));
      ForEachVariant(
          [&](Padding padding) {
            GemmArgs args{A(transpose_a, padding), B(transpose_b, padding),
                          UnwrittenTensor({m, n}, DType::kF32, padding), transpose_a, transpose_b};
            CurrentBackend().Gemm(args);
            const Tensor sum = RandomTensor("out", {m, n}, {.padding = padding});
            CurrentBackend().Gemm({args.a, args.b, sum, transpose_a, transpose_b, true});
            return std::vector<Tensor>{args.out, sum};
          },
          [&](const std::vector<Tensor>& out) {
            const Vec expected = Expected(transpose_a, transpose_b);
            ExpectClose(out[0], expected, kTolerance, "out");
            const Vec before = ToVector<double>(RandomTensor("out", {m, n}));
            ExpectClose(out[1], reference::Map(expected, before, std::plus<>()), kTolerance,
                        "accumulated");
          });
    }
  }
}

// What layout invariance stands on: a row does not know how many rows are beside it, nor a column.
TEST(GemmInvarianceTest, PartsHaveTheBitsOfTheWhole) {
  ScopedTestContext context;
  const int64_t m = 700, n = 200, k = 600;
  const Tensor a = RandomTensor("a", {m, k}), b = RandomTensor("b", {n, k});
  const Tensor whole = UnwrittenTensor({m, n});
  context.backend().Gemm({a, b, whole, false, true});
  for (int64_t rows : {1, 5, 64, 300}) {
    const Tensor part = UnwrittenTensor({rows, n});
    context.backend().Gemm({a.Narrow(111, rows), b, part, false, true});
    ExpectBitEqual(part, whole.Narrow(111, rows), "rows");
  }
  const Tensor part = UnwrittenTensor({m, 37});
  context.backend().Gemm({a, b.Narrow(90, 37), part, false, true});
  ExpectBitEqual(part, testing::WithPadding(whole.NarrowCols(90, 37), Padding::kNone), "columns");
}

TEST(GemmInvarianceTest, EveryInstructionSetWithFusedMultiplyAddsGivesTheSameBits) {
  // ForEachVariant compares within one instruction set; here across: the scalar build has no fused
  // multiply-add, so it is left out.
  std::vector<Tensor> results;
  testing::ForEachVariant(
      [&](Padding padding) {
        const Tensor a = RandomTensor("a", {37, 1100}, {.padding = padding});
        const Tensor b = RandomTensor("b", {1100, 61}, {.padding = padding});
        const Tensor out = UnwrittenTensor({37, 61}, DType::kF32, padding);
        CurrentBackend().Gemm({a, b, out});
        return std::vector<Tensor>{out};
      },
      [&](const std::vector<Tensor>& out) { results.push_back(out[0]); });
  for (size_t i = 1; i + 1 < results.size(); ++i) ExpectBitEqual(results[i], results[0]);
}

TEST(GemmEdgeTest, NaNAndInfinityPassThrough) {
  ScopedTestContext context;
  const double inf = INFINITY;
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor a = MakeTensor({1, 0, 2, 0}, {4, 1}),
                 b = MakeTensor({inf, 1, NAN, 3}, {4, 1}, dtype);
    const Tensor outer = UnwrittenTensor({4, 4});
    context.backend().Gemm({a, b, outer, false, true});
    ExpectClose(outer, {inf, 1, NAN, 3, NAN, 0, NAN, 0, inf, 2, NAN, 6, NAN, 0, NAN, 0}, 0);
  }
}

}  // namespace
}  // namespace meshfold
