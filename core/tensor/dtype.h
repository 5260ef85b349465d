// Element types: f32 computes; bf16 and f16 are storage; f64 holds statistics (sums of squares);
// integers hold ids, counts and bytes.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace meshfold {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kI64, kU8 };

namespace internal {
[[noreturn]] void FailUnknownDType(DType dtype);
}

// Bytes of one element.
inline int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kU8:
      return 1;
  }
  internal::FailUnknownDType(dtype);
}

// "f32", "bf16", "f16", "f64", "i32", "i64", "u8": the names of YAML files and messages.
const char* DTypeName(DType dtype);
absl::StatusOr<DType> ParseDType(absl::string_view name);

// Storage-only 16-bit floats: conversion is all the arithmetic they have. Rounding is to nearest
// even; NaN stays NaN.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
static_assert(sizeof(BF16) == 2 && sizeof(F16) == 2);

BF16 ToBF16(float value);
float ToFloat(BF16 value);
F16 ToF16(float value);
float ToFloat(F16 value);

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<F16> {
  static constexpr DType value = DType::kF16;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace meshfold
