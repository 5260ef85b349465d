// Conversions between element types, for copies and for weights kept in 16 bits.
#pragma once

#include <cstdint>

#include "core/tensor/tensor.h"

namespace meshfold::cpu {

// Converts n contiguous elements. Floats round to nearest even; to an integer, values round toward
// zero, saturate at its limits, and NaN becomes 0.
void ConvertRun(DType from, const void* x, DType to, void* out, int64_t n);

// `value` as the element type of `out`, written to one element.
void ConvertScalar(double value, DType to, void* out);

// The elements of a weight as contiguous f32: itself when it is that already, else a converted
// copy from the context's allocator.
Tensor AsContiguousF32(const Tensor& weight);

}  // namespace meshfold::cpu
