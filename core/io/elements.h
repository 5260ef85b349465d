// Elements between their form in files (dense, little-endian, any alignment) and tensors in memory
// (rows with a pitch), converting on the way. Host memory only.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/io/file_dtype.h"
#include "core/tensor/tensor.h"

namespace meshfold {

// The tensor type that holds every value of `dtype`: itself where there is one, i32 for BOOL, I8,
// I16 and U16, i64 for U32 and U64 (values above 2^63 - 1 are refused when read). Unimplemented,
// naming the type, for 8-bit floats and complex numbers: only their bytes can be had.
absl::StatusOr<DType> TensorTypeOf(FileDType dtype);

// Fills `dst` with the dst.numel() elements at `src`. Floats convert to floats (nearest even, f64
// through f32 to 16 bits), integers to integers; OutOfRange names the first integer that does not
// fit. InvalidArgument for other pairs, Unimplemented as above.
absl::Status ReadElements(FileDType dtype, const char* src, const Tensor& dst);

// Hands `tensor` to `sink` as elements of `dtype` in row-major order, in pieces of whole elements.
// Conversions and errors as above.
absl::Status WriteElements(const Tensor& tensor, FileDType dtype,
                           absl::FunctionRef<absl::Status(absl::Span<const char>)> sink);

}  // namespace meshfold
