// Rotary position embedding: rotates pairs of a head's dims by an angle of the token's position.
// Su et al., "RoFormer" (2021); half-split pairs as in GPT-NeoX.
#include <algorithm>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/rope.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// Rotates the pairs (x[i], x[i + n]), i < n; sin_sign -1 rotates back. `out` may be `x`.
void RotatePairs(const float* x, const float* cos, const float* sin, float sin_sign, float* out,
                 int64_t n) {
  const FloatVec sign = hn::Set(FloatTag(), sin_sign);
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec u = step.Load(x + i), v = step.Load(x + n + i);
    const FloatVec c = step.Load(cos + i), s = hn::Mul(sign, step.Load(sin + i));
    step.Store(hn::NegMulAdd(v, s, hn::Mul(u, c)), out + i);
    step.Store(hn::MulAdd(u, s, hn::Mul(v, c)), out + n + i);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(RotatePairs);

void CpuBackend::Rope(const Tensor& x, int64_t num_heads, const Tensor& positions,
                      const Tensor& cos, const Tensor& sin, bool inverse, const Tensor& out) {
  const int64_t head_dim = x.cols() / num_heads, pairs = cos.cols();
  MF_CHECK_EQ(head_dim * num_heads, x.cols());
  MF_CHECK_LE(2 * pairs, head_dim);
  const auto kernel = HWY_DYNAMIC_DISPATCH(RotatePairs);
  const float sin_sign = inverse ? -1.0f : 1.0f;
  const cpu::Rows<float> x_rows(x), out_rows(out), cos_rows(cos), sin_rows(sin);
  const int32_t* position = positions.span<int32_t>().data();
  cpu::ParallelRows(x.rows(), 2 * x.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t at = position[row];
      MF_CHECK(at >= 0 && at < cos.rows()) << " position " << at << " of " << cos.rows();
      const float* cos_row = cos_rows[at];
      const float* sin_row = sin_rows[at];
      const float* from = x_rows[row];
      float* to = out_rows[row];
      for (int64_t head = 0; head < num_heads; ++head, from += head_dim, to += head_dim) {
        kernel(from, cos_row, sin_row, sin_sign, to, pairs);
        if (from != to) std::copy(from + 2 * pairs, from + head_dim, to + 2 * pairs);
      }
    }
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
