#include "core/tensor/dtype.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                          DType::kI32, DType::kI64,  DType::kU8};

}  // namespace

void internal::FailUnknownDType(DType dtype) {
  internal::CheckFailed(__FILE__, __LINE__, "known dtype",
                        absl::StrCat(" dtype code ", static_cast<int>(dtype)));
}

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kF64:
      return "f64";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kU8:
      return "u8";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : kAll) {
    if (name == DTypeName(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype '", name, "'; known: f32, bf16, f16, f64, i32, i64, u8"));
}

BF16 ToBF16(float value) {
  uint32_t bits = BitsOf(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {  // NaN: keep it quiet, never round it to infinity
    return BF16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return BF16{static_cast<uint16_t>(bits >> 16)};
}

float ToFloat(BF16 value) { return FloatOf(static_cast<uint32_t>(value.bits) << 16); }

F16 ToF16(float value) {
  uint32_t bits = BitsOf(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t half;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00u;  // rounds to infinity (65520 and above)
  } else if (magnitude < 0x38800000u) {
    // Subnormal half: adding 0.5 aligns the mantissa so that the hardware rounds to nearest even.
    half = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  return F16{static_cast<uint16_t>(sign | half)};
}

float ToFloat(F16 value) {
  uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  uint32_t exponent = (value.bits >> 10) & 0x1fu, mantissa = value.bits & 0x3ffu;
  if (exponent == 31) return FloatOf(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return FloatOf(BitsOf(magnitude) | sign);
  }
  return FloatOf(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace meshfold
