// Element types of tensors in files: more than tensors in memory have.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/tensor/dtype.h"

namespace meshfold {

// The types of safetensors, in the order in which its own writer ranks them.
enum class FileDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Bytes of one element, and the format's name of the type ("F32").
int64_t SizeOf(FileDType dtype);
const char* FileDTypeName(FileDType dtype);
// InvalidArgument for a name that is not in the list above (sub-byte types among them).
absl::StatusOr<FileDType> ParseFileDType(absl::string_view name);
// How a tensor of ours is stored.
FileDType FileDTypeOf(DType dtype);

}  // namespace meshfold
