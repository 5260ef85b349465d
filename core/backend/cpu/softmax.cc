// Softmax over rows and what is built on a row's log-sum-exp. Each row is read from memory once.
#include <cmath>
#include <limits>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/softmax.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

float MaxOf(const float* x, int64_t n) {
  const float lowest = -std::numeric_limits<float>::infinity();
  FloatVec max = hn::Set(FloatTag(), lowest);
  VectorLoop(n, [&](int64_t i, auto step)
                    HWY_ATTR { max = hn::Max(max, step.Fill(step.Load(x + i), lowest)); });
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), max));
}

// out = e^(x - max); returns its sum.
float ExpAndSum(const float* x, float max, float* out, int64_t n) {
  const FloatVec shift = hn::Set(FloatTag(), max);
  FloatVec sum = hn::Zero(FloatTag());
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec e = step.Fill(ExpNotPositive(hn::Sub(step.Load(x + i), shift)), 0.0f);
    step.Store(e, out + i);
    sum = hn::Add(sum, e);
  });
  return SumLanes(sum);
}

float ExpSum(const float* x, float max, int64_t n) {
  const FloatVec shift = hn::Set(FloatTag(), max);
  FloatVec sum = hn::Zero(FloatTag());
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    sum = hn::Add(sum, step.Fill(ExpNotPositive(hn::Sub(step.Load(x + i), shift)), 0.0f));
  });
  return SumLanes(sum);
}

void ScaleInPlace(float factor, float* x, int64_t n) {
  const FloatVec factors = hn::Set(FloatTag(), factor);
  VectorLoop(n, [&](int64_t i, auto step)
                    HWY_ATTR { step.Store(hn::Mul(factors, step.Load(x + i)), x + i); });
}

// A row of -infinity alone gives NaN, as
// in PyTorch.
void SoftmaxRow(const float* x, float* out, int64_t n) {
  const float sum = ExpAndSum(x, MaxOf(x, n), out, n);
  ScaleInPlace(1.0f / sum, out, n);
}

// -infinity for a row of -infinity alone.
float LogSumExpRow(const float* x, int64_t n) {
  const float max = MaxOf(x, n);
  if (max == -std::numeric_limits<float>::infinity()) {
    // Only NaN or -infinity: adding tells which.
    float sum = max;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    return sum;
  }
  return max + std::log(ExpSum(x, max, n));
}

// dx = y (dy - sum(y dy)).
void SoftmaxBackwardRow(const float* y, const float* dy, float* dx, int64_t n) {
  FloatVec products = hn::Zero(FloatTag());
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    products = hn::MulAdd(step.Load(y + i), step.Load(dy + i), products);
  });
  const FloatVec dot = hn::Set(FloatTag(), SumLanes(products));
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    step.Store(hn::Mul(step.Load(y + i), hn::Sub(step.Load(dy + i), dot)), dx + i);
  });
}

// dz = factor * 2 lse softmax(z).
void SquaredLogSumExpBackwardRow(const float* z, float factor, float* dz, int64_t n) {
  const float max = MaxOf(z, n);
  const float sum = ExpAndSum(z, max, dz, n);
  ScaleInPlace(factor * 2.0f * (max + std::log(sum)) / sum, dz, n);
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(SoftmaxRow);
HWY_EXPORT(SoftmaxBackwardRow);
HWY_EXPORT(LogSumExpRow);
HWY_EXPORT(SquaredLogSumExpBackwardRow);

namespace {

// An exponential costs as much as this many copied elements.
constexpr int64_t kExpCost = 4;

}  // namespace

void CpuBackend::Softmax(const Tensor& x, const Tensor& out) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SoftmaxRow);
  const cpu::Rows<float> x_rows(x), out_rows(out);
  cpu::ParallelRows(x.rows(), kExpCost * x.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernel(x_rows[row], out_rows[row], x.cols());
    }
  });
}

void CpuBackend::SoftmaxBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SoftmaxBackwardRow);
  const cpu::Rows<float> y_rows(y), dy_rows(dy), dx_rows(dx);
  cpu::ParallelRows(y.rows(), 2 * y.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernel(y_rows[row], dy_rows[row], dx_rows[row], y.cols());
    }
  });
}

void CpuBackend::LogSumExp(const Tensor& x, const Tensor& out) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(LogSumExpRow);
  const cpu::Rows<float> x_rows(x);
  float* lse = out.span<float>().data();
  cpu::ParallelRows(x.rows(), kExpCost * x.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) lse[row] = kernel(x_rows[row], x.cols());
  });
}

void CpuBackend::SquaredLogSumExp(const Tensor& z, double scale, const Tensor& valid,
                                  const Tensor& out) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(LogSumExpRow);
  const int64_t rows = z.rows(), cols = z.cols();
  const Tensor partials = Tensor::Contiguous({cpu::NumRowChunks(rows)}, DType::kF64);
  const cpu::Rows<float> z_rows(z);
  const cpu::ValidRows is_valid(valid);
  double* sums = partials.data<double>();
  cpu::ParallelRowChunks(rows, kExpCost * cols, [&](int64_t chunk, int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t row = begin; row < end; ++row) {
      if (!is_valid[row]) continue;
      const double lse = kernel(z_rows[row], cols);
      sum += lse * lse;
    }
    sums[chunk] = sum;
  });
  double total = 0;
  for (int64_t chunk = 0; chunk < partials.numel(); ++chunk) total += sums[chunk];
  out.data<float>()[0] = static_cast<float>(scale * total);
}

void CpuBackend::SquaredLogSumExpBackward(const Tensor& z, double scale, const Tensor& valid,
                                          const Tensor& dout, const Tensor& dz) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SquaredLogSumExpBackwardRow);
  const float factor = static_cast<float>(scale * dout.data<float>()[0]);
  const cpu::Rows<float> z_rows(z), dz_rows(dz);
  const cpu::ValidRows is_valid(valid);
  cpu::ParallelRows(z.rows(), kExpCost * z.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* dz_row = dz_rows[row];
      if (is_valid[row]) {
        kernel(z_rows[row], factor, dz_row, z.cols());
      } else {
        std::fill_n(dz_row, z.cols(), 0.0f);
      }
    }
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
