#include "core/backend/cpu/reductions.h"

#include <algorithm>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/reductions.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

void AddRun(const float* x, float* sum, int64_t n) {
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    step.Store(hn::Add(step.Load(sum + i), step.Load(x + i)), sum + i);
  });
}

// Adds the squares of n floats, a multiple of 16, to 16 running f64 sums, element i to sum i % 16:
// the square of an f32 is exact in f64, so every instruction set adds the same numbers in the same
// order.
void AddSquares16(const float* x, int64_t n, double* sums) {
  constexpr int64_t kSums = 16, kLanes = HWY_MIN(HWY_LANES(double), 8), kVecs = kSums / kLanes;
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  hn::Vec<decltype(d)> sum[kVecs];
  for (int64_t v = 0; v < kVecs; ++v) sum[v] = hn::LoadU(d, sums + v * kLanes);
  for (int64_t i = 0; i < n; i += kSums) {
    FetchAhead(x + i);
#pragma GCC unroll 16
    for (int64_t v = 0; v < kVecs; ++v) {
      const auto value = hn::PromoteTo(d, hn::LoadU(df, x + i + v * kLanes));
      sum[v] = hn::MulAdd(value, value, sum[v]);
    }
  }
  for (int64_t v = 0; v < kVecs; ++v) hn::StoreU(sum[v], d, sums + v * kLanes);
}

double DotF64(const float* a, const float* b, int64_t n) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    sums = hn::MulAdd(hn::PromoteTo(d, hn::LoadU(df, a + i)),
                      hn::PromoteTo(d, hn::LoadU(df, b + i)), sums);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < n; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void ScaleRun(float factor, const float* x, float* out, int64_t n) {
  const FloatVec factors = hn::Set(FloatTag(), factor);
  VectorLoop(n, [&](int64_t i, auto step)
                    HWY_ATTR { step.Store(hn::Mul(factors, step.Load(x + i)), out + i); });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(AddRun);
HWY_EXPORT(AddSquares16);
HWY_EXPORT(DotF64);
HWY_EXPORT(ScaleRun);

namespace {

// Columns summed at a time, so that the running sums stay in the first-level cache.
constexpr int64_t kColumnBlock = 2048;

// The sum of the logical block starting at `begin`, the same bits for padded and contiguous rows.
double BlockSquareSum(const Tensor& x, int64_t begin, int64_t end) {
  constexpr int64_t kSums = 16;
  const auto add = HWY_DYNAMIC_DISPATCH(AddSquares16);
  double sums[kSums] = {};
  if (x.cols() % kSums == 0 || (x.IsContiguous() && end - begin == kSquareSumBlock)) {
    // Pieces of rows begin and end at multiples of 16, as blocks do.
    ForEachPiece<float>(x, begin, end, [&](const float* piece, int64_t, int64_t count) {
      add(piece, count, sums);
    });
  } else {
    float block[kSquareSumBlock] = {};
    ForEachPiece<float>(x, begin, end, [&](const float* piece, int64_t first, int64_t count) {
      std::copy_n(piece, count, block + (first - begin));
    });
    add(block, kSquareSumBlock, sums);
  }
  for (int64_t width = kSums / 2; width >= 1; width /= 2) {
    for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
  }
  return sums[0];
}

}  // namespace

void cpu::AddTo(const float* x, float* out, int64_t n) { HWY_DYNAMIC_DISPATCH(AddRun)(x, out, n); }

void cpu::ScaleTo(float factor, const float* x, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleRun)(factor, x, out, n);
}

void cpu::SumChunks(const Tensor& partials, bool accumulate, const Tensor& out) {
  MF_CHECK_EQ(partials.cols(), out.numel());
  float* sum = out.data<float>();
  const int64_t chunks = partials.rows(), width = partials.cols();
  const int64_t grain = kMinElementsPerThread / std::max<int64_t>(1, chunks) + 1;
  ParallelFor(width, grain, NumThreads(), [&](int64_t begin, int64_t end) {
    if (chunks == 0) {
      if (!accumulate) std::fill(sum + begin, sum + end, 0.0f);
      return;
    }
    float* total = partials.row<float>(0) + begin;
    for (int64_t chunk = 1; chunk < chunks; ++chunk) {
      AddTo(partials.row<float>(chunk) + begin, total, end - begin);
    }
    if (accumulate) {
      AddTo(total, sum + begin, end - begin);
    } else {
      std::copy_n(total, end - begin, sum + begin);
    }
  });
}

void CpuBackend::ColumnSum(const Tensor& x, bool accumulate, const Tensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  const Tensor partials = Tensor::Contiguous({cpu::NumRowChunks(rows), cols});
  const cpu::Rows<float> x_rows(x), sum_rows(partials);
  cpu::ParallelRowChunks(rows, cols, [&](int64_t chunk, int64_t begin, int64_t end) {
    float* sum = sum_rows[chunk];
    for (int64_t col = 0; col < cols; col += kColumnBlock) {
      const int64_t count = std::min(kColumnBlock, cols - col);
      std::copy_n(x_rows[begin] + col, count, sum + col);
      for (int64_t row = begin + 1; row < end; ++row) {
        cpu::AddTo(x_rows[row] + col, sum + col, count);
      }
    }
  });
  cpu::SumChunks(partials, accumulate, out);
}

void CpuBackend::BlockSquareSums(const Tensor& x, const Tensor& out) {
  const int64_t blocks = (x.numel() + kSquareSumBlock - 1) / kSquareSumBlock;
  MF_CHECK_EQ(out.numel(), blocks);
  double* sums = out.data<double>();
  cpu::ParallelRows(blocks, kSquareSumBlock, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kSquareSumBlock;
      sums[block] = BlockSquareSum(x, first, std::min(x.numel(), first + kSquareSumBlock));
    }
  });
}

void CpuBackend::WeightedSum(const Tensor& x, const Tensor& coefficients, const Tensor& valid,
                             const Tensor& out) {
  const int64_t rows = x.rows(), cols = x.cols();
  const auto dot = HWY_DYNAMIC_DISPATCH(DotF64);
  const float* factors = coefficients.span<float>().data();
  const Tensor partials = Tensor::Contiguous({cpu::NumRowChunks(rows)}, DType::kF64);
  const cpu::Rows<float> x_rows(x);
  const cpu::ValidRows is_valid(valid);
  double* sums = partials.data<double>();
  cpu::ParallelRowChunks(rows, cols, [&](int64_t chunk, int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      if (is_valid[row]) sum += dot(x_rows[row], factors, cols);
    }
    sums[chunk] = sum;
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < partials.numel(); ++chunk) total += sums[chunk];
  out.data<float>()[0] = static_cast<float>(total);
}

void CpuBackend::WeightedSumBackward(const Tensor& coefficients, const Tensor& valid,
                                     const Tensor& dout, const Tensor& dx) {
  const float* factors = coefficients.span<float>().data();
  const float gradient = dout.data<float>()[0];
  const cpu::Rows<float> dx_rows(dx);
  const cpu::ValidRows is_valid(valid);
  cpu::ParallelRows(dx.rows(), dx.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* out = dx_rows[row];
      if (is_valid[row]) {
        cpu::ScaleTo(gradient, factors, out, dx.cols());
      } else {
        std::fill_n(out, dx.cols(), 0.0f);
      }
    }
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
