#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace meshfold {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of sign, exponent and mantissa fields, from the definition of the format.
double ValueOf(uint32_t bits, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = static_cast<int>(bits) & ((1 << mantissa_bits) - 1);
  const double sign = (bits & 0x8000u) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

struct F16Format {
  using Type = F16;
  static constexpr int kExponentBits = 5, kMantissaBits = 10;
  static Type Round(float x) { return ToF16(x); }
};
struct BF16Format {
  using Type = BF16;
  static constexpr int kExponentBits = 8, kMantissaBits = 7;
  static Type Round(float x) { return ToBF16(x); }
};

template <typename Format>
class HalfTest : public ::testing::Test {};
using Formats = ::testing::Types<F16Format, BF16Format>;
TYPED_TEST_SUITE(HalfTest, Formats);

TYPED_TEST(HalfTest, EveryPatternHasTheValueOfItsFields) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double expected = ValueOf(bits, TypeParam::kExponentBits, TypeParam::kMantissaBits);
    const float actual = ToFloat(typename TypeParam::Type{static_cast<uint16_t>(bits)});
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << bits;
      ASSERT_TRUE(std::isnan(ToFloat(TypeParam::Round(actual)))) << bits;
    } else {
      ASSERT_EQ(actual, expected) << bits;
      ASSERT_EQ(std::signbit(actual), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(TypeParam::Round(actual).bits, bits);
    }
  }
}

// Rounding is monotone, so its value at every midpoint and at that midpoint's two float neighbours
// decides it everywhere.
TYPED_TEST(HalfTest, RoundsToNearestEvenAtEveryMidpoint) {
  const uint32_t infinity = ((1u << TypeParam::kExponentBits) - 1) << TypeParam::kMantissaBits;
  for (uint32_t low = 0; low < infinity; ++low) {
    const uint32_t high = low + 1, even = low % 2 == 0 ? low : high;
    const double low_value = ValueOf(low, TypeParam::kExponentBits, TypeParam::kMantissaBits);
    // Infinity stands where the next finite number would.
    const double high_value =
        high < infinity
            ? ValueOf(high, TypeParam::kExponentBits, TypeParam::kMantissaBits)
            : 2 * low_value - ValueOf(low - 1, TypeParam::kExponentBits, TypeParam::kMantissaBits);
    const float middle = static_cast<float>((low_value + high_value) / 2);
    ASSERT_EQ(middle, (low_value + high_value) / 2);
    ASSERT_EQ(TypeParam::Round(middle).bits, even) << low;
    ASSERT_EQ(TypeParam::Round(std::nextafter(middle, 0.0f)).bits, low) << low;
    ASSERT_EQ(TypeParam::Round(std::nextafter(middle, kInf)).bits, high) << low;
    ASSERT_EQ(TypeParam::Round(-middle).bits, even | 0x8000) << low;
  }
}

TYPED_TEST(HalfTest, KeepsInfinitiesAndNaN) {
  EXPECT_EQ(ToFloat(TypeParam::Round(kInf)), kInf);
  EXPECT_EQ(ToFloat(TypeParam::Round(-kInf)), -kInf);
  EXPECT_EQ(ToFloat(TypeParam::Round(std::numeric_limits<float>::max())), kInf);
  // NaNs whose payload lies in the bits that rounding drops.
  for (uint32_t bits : {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    EXPECT_TRUE(std::isnan(ToFloat(TypeParam::Round(std::bit_cast<float>(bits))))) << bits;
  }
}

TEST(DTypeTest, NamesRoundTrip) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64,
                      DType::kU8}) {
    EXPECT_EQ(*ParseDType(DTypeName(dtype)), dtype);
  }
  EXPECT_EQ(ParseDType("float").status().message(),
            "unknown dtype 'float'; known: f32, bf16, f16, f64, i32, i64, u8");
}

TEST(DTypeTest, SizesMatchTheTypes) {
  EXPECT_EQ(SizeOf(DTypeOf<float>::value), 4);
  EXPECT_EQ(SizeOf(DTypeOf<BF16>::value), 2);
  EXPECT_EQ(SizeOf(DTypeOf<F16>::value), 2);
  EXPECT_EQ(SizeOf(DTypeOf<double>::value), 8);
  EXPECT_EQ(SizeOf(DTypeOf<int32_t>::value), 4);
  EXPECT_EQ(SizeOf(DTypeOf<int64_t>::value), 8);
  EXPECT_EQ(SizeOf(DTypeOf<uint8_t>::value), 1);
}

}  // namespace
}  // namespace meshfold
