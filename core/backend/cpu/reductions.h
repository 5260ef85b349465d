// Sums over rows whose bits do not depend on the number of threads, and the runs they are made of.
#pragma once

#include <cstdint>

#include "core/tensor/tensor.h"

namespace meshfold::cpu {

// out[c] (+)= partials[0, c] + partials[1, c] + ...: added up in that order, then written, or added
// to `out` as one number. Zeros without partials. `partials` f32 [chunks, width] is scratch and is
// overwritten; `out` f32 [width] contiguous.
void SumChunks(const Tensor& partials, bool accumulate, const Tensor& out);

// out[i] += x[i].
void AddTo(const float* x, float* out, int64_t n);
// out[i] = factor x[i]; `out` may be `x`.
void ScaleTo(float factor, const float* x, float* out, int64_t n);

}  // namespace meshfold::cpu
