// RMSNorm, forward and backward, with the residual addition fused: a row is read once from memory
// and a second time from cache.
#include <cmath>

#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/kernel_args.h"
#include "core/backend/cpu/reductions.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/norm.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// Returns rstd.
float NormForward(const cpu::NormSlice& slice) {
  const FloatTag d;
  FloatVec squares0 = hn::Zero(d), squares1 = hn::Zero(d);
  const float* x = slice.x;
  if (slice.residual != nullptr) {
    VectorLoop(slice.n, [&](int64_t i, auto step) HWY_ATTR {
      const FloatVec v = hn::Add(step.Load(slice.x + i), step.Load(slice.residual + i));
      step.Store(v, slice.sum + i);
      squares0 = hn::MulAdd(v, v, squares0);
    });
    x = slice.sum;
  } else {
    // Two sums in turn: one alone would wait for its own additions.
    int64_t i = 0;
    for (; i + 2 * kFloatLanes <= slice.n; i += 2 * kFloatLanes) {
      const FloatVec v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + kFloatLanes);
      squares0 = hn::MulAdd(v0, v0, squares0);
      squares1 = hn::MulAdd(v1, v1, squares1);
    }
    VectorLoop(slice.n - i, [&](int64_t j, auto step) HWY_ATTR {
      const FloatVec v = step.Load(x + i + j);
      squares0 = hn::MulAdd(v, v, squares0);
    });
  }
  const double mean = SumLanes(hn::Add(squares0, squares1)) / static_cast<double>(slice.n);
  const float rstd = static_cast<float>(1.0 / std::sqrt(mean + slice.eps));
  const FloatVec factor = hn::Set(d, rstd);
  VectorLoop(slice.n, [&](int64_t i, auto step) HWY_ATTR {
    step.Store(hn::Mul(hn::Mul(step.Load(x + i), factor), step.Load(slice.weight + i)),
               slice.y + i);
  });
  return rstd;
}

// With t = dy w and xhat = x rstd: dx = rstd (t - xhat mean(t xhat)) + dsum, dweight += dy xhat.
void NormBackward(const cpu::NormBackwardSlice& slice) {
  const FloatTag d;
  FloatVec products = hn::Zero(d);
  VectorLoop(slice.n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec t = hn::Mul(step.Load(slice.dy + i), step.Load(slice.weight + i));
    products = hn::MulAdd(t, step.Load(slice.x + i), products);
  });
  const float r = slice.rstd;
  const float mean = SumLanes(products) * r / static_cast<float>(slice.n);  // mean(t xhat)
  const FloatVec rstd = hn::Set(d, r), shrink = hn::Set(d, mean);
  VectorLoop(slice.n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec dy = step.Load(slice.dy + i);
    const FloatVec xhat = hn::Mul(step.Load(slice.x + i), rstd);
    if (slice.dweight != nullptr) {
      step.Store(hn::MulAdd(dy, xhat, step.Load(slice.dweight + i)), slice.dweight + i);
    }
    if (slice.dx == nullptr) return;
    const FloatVec t = hn::Mul(dy, step.Load(slice.weight + i));
    FloatVec dx = hn::Mul(rstd, hn::NegMulAdd(xhat, shrink, t));
    if (slice.dsum != nullptr) dx = hn::Add(dx, step.Load(slice.dsum + i));
    step.Store(dx, slice.dx + i);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(NormForward);
HWY_EXPORT(NormBackward);

namespace {

// The factor of each element in f32: w, or 1 + w.
Tensor EffectiveWeight(const RmsNormArgs& args) {
  const Tensor weight = cpu::AsContiguousF32(args.weight);
  if (!args.zero_centered) return weight;
  const Tensor shifted = Tensor::Contiguous(weight.shape());
  for (int64_t i = 0; i < weight.numel(); ++i) {
    shifted.data<float>()[i] = 1.0f + weight.data<float>()[i];
  }
  return shifted;
}

float* Advance(float* p, int64_t n) { return p == nullptr ? nullptr : p + n; }

}  // namespace

void CpuBackend::RmsNorm(const RmsNormArgs& args, const Tensor& y, const Tensor& rstd,
                         const Tensor& sum) {
  const int64_t rows = args.x.rows(), cols = args.x.cols(), slice_size = cols / args.groups;
  MF_CHECK_EQ(slice_size * args.groups, cols);
  MF_CHECK_EQ(args.weight.numel(), slice_size);
  const Tensor weight = EffectiveWeight(args);
  const float* weight_data = weight.data<float>();
  const cpu::Rows<float> x_rows(args.x), residual_rows(args.residual), y_rows(y), rstd_rows(rstd),
      sum_rows(sum);
  const auto kernel = HWY_DYNAMIC_DISPATCH(NormForward);
  cpu::ParallelRows(rows, 2 * cols, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* rstd_row = rstd_rows[row];
      for (int64_t group = 0; group < args.groups; ++group) {
        const int64_t at = group * slice_size;
        cpu::NormSlice slice;
        slice.x = x_rows[row] + at;
        slice.residual = Advance(residual_rows[row], at);
        slice.weight = weight_data;
        slice.sum = Advance(sum_rows[row], at);
        slice.y = y_rows[row] + at;
        slice.n = slice_size;
        slice.eps = args.eps;
        const float value = kernel(slice);
        if (rstd_row != nullptr) rstd_row[group] = value;
      }
    }
  });
}

void CpuBackend::RmsNormBackward(const RmsNormArgs& args, const Tensor& rstd, const Tensor& dy,
                                 const Tensor& dsum, const Tensor& dx, const Tensor& dweight,
                                 bool accumulate_dweight) {
  const int64_t rows = args.x.rows(), cols = args.x.cols(), slice_size = cols / args.groups;
  const Tensor weight = EffectiveWeight(args);
  const float* weight_data = weight.data<float>();
  const auto kernel = HWY_DYNAMIC_DISPATCH(NormBackward);
  Tensor partials;
  if (dweight.defined()) partials = Tensor::Contiguous({cpu::NumRowChunks(rows), slice_size});
  const cpu::Rows<float> x_rows(args.x), rstd_rows(rstd), dy_rows(dy), dsum_rows(dsum), dx_rows(dx),
      partial_rows(partials);
  cpu::ParallelRowChunks(rows, 2 * cols, [&](int64_t chunk, int64_t begin, int64_t end) {
    float* partial = partial_rows[chunk];
    if (partial != nullptr) std::fill_n(partial, slice_size, 0.0f);
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t group = 0; group < args.groups; ++group) {
        const int64_t at = group * slice_size;
        cpu::NormBackwardSlice slice;
        slice.x = x_rows[row] + at;
        slice.weight = weight_data;
        slice.dy = dy_rows[row] + at;
        slice.dsum = Advance(dsum_rows[row], at);
        slice.dx = Advance(dx_rows[row], at);
        slice.dweight = partial;
        slice.n = slice_size;
        slice.rstd = rstd_rows[row][group];
        kernel(slice);
      }
    }
  });
  if (dweight.defined()) cpu::SumChunks(partials, accumulate_dweight, dweight);
}

}  // namespace meshfold
#endif  // HWY_ONCE
