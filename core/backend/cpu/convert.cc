#include "core/backend/cpu/convert.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/backend/cpu/row_loop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/convert.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

using UintTag = hn::RebindToUnsigned<FloatTag>;
using HalfBitsTag = hn::Rebind<uint16_t, FloatTag>;

// Calls body(i) for whole vectors, and once more on copies for the rest.
template <class From, class To, class Body>
HWY_INLINE void ConvertLoop(const From* x, To* out, int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) body(x + i, out + i);
  if (i == n) return;
  From x_rest[kFloatLanes] = {};
  To out_rest[kFloatLanes];
  std::memcpy(x_rest, x + i, (n - i) * sizeof(From));
  body(x_rest, out_rest);
  std::memcpy(out + i, out_rest, (n - i) * sizeof(To));
}

void FloatToBF16(const float* x, uint16_t* out, int64_t n) {
  ConvertLoop(x, out, n, [](const float* from, uint16_t* to) HWY_ATTR {
    const UintVec bits = RoundedBF16(hn::BitCast(UintTag(), hn::LoadU(FloatTag(), from)));
    hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), bits)),
               HalfBitsTag(), to);
  });
}

void FloatToF16(const float* x, uint16_t* out, int64_t n) {
  ConvertLoop(x, out, n, [](const float* from, uint16_t* to) HWY_ATTR {
    const UintVec bits = RoundedF16(hn::BitCast(UintTag(), hn::LoadU(FloatTag(), from)));
    hn::StoreU(hn::DemoteTo(HalfBitsTag(), hn::BitCast(hn::RebindToSigned<FloatTag>(), bits)),
               HalfBitsTag(), to);
  });
}

void BF16ToFloat(const uint16_t* x, float* out, int64_t n) {
  ConvertLoop(x, out, n, [](const uint16_t* from, float* to) HWY_ATTR {
    const UintVec bits = hn::PromoteTo(UintTag(), hn::LoadU(HalfBitsTag(), from));
    hn::StoreU(hn::BitCast(FloatTag(), hn::ShiftLeft<16>(bits)), FloatTag(), to);
  });
}

void F16ToFloat(const uint16_t* x, float* out, int64_t n) {
  ConvertLoop(x, out, n, [](const uint16_t* from, float* to) HWY_ATTR {
    const UintVec half = hn::PromoteTo(UintTag(), hn::LoadU(HalfBitsTag(), from));
    hn::StoreU(WidenedF16(half), FloatTag(), to);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold::cpu {
namespace {

HWY_EXPORT(FloatToBF16);
HWY_EXPORT(FloatToF16);
HWY_EXPORT(BF16ToFloat);
HWY_EXPORT(F16ToFloat);

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

template <typename From, typename To>
To Convert(From value) {
  if constexpr (kIsHalf<From>) {
    return Convert<float, To>(ToFloat(value));
  } else if constexpr (std::is_same_v<To, BF16>) {
    return ToBF16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, F16>) {
    return ToF16(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<From>) {
    using Limits = std::numeric_limits<To>;
    if (std::isnan(value)) return 0;
    // The lowest integers are powers of two (or 0): exact; one above the largest is too.
    if (value <= static_cast<From>(Limits::min())) return Limits::min();
    if (value >= std::ldexp(From{1}, Limits::digits)) return Limits::max();
    return static_cast<To>(value);
  } else {
    using Limits = std::numeric_limits<To>;
    const int64_t wide = static_cast<int64_t>(value);
    return static_cast<To>(std::clamp<int64_t>(wide, Limits::min(), Limits::max()));
  }
}

template <typename From, typename To>
void ConvertEach(const void* x, void* out, int64_t n) {
  const From* from = static_cast<const From*>(x);
  To* to = static_cast<To*>(out);
  for (int64_t i = 0; i < n; ++i) to[i] = Convert<From, To>(from[i]);
}

template <typename From>
void ConvertFrom(const void* x, DType to, void* out, int64_t n) {
  switch (to) {
    case DType::kF32:
      return ConvertEach<From, float>(x, out, n);
    case DType::kBF16:
      return ConvertEach<From, BF16>(x, out, n);
    case DType::kF16:
      return ConvertEach<From, F16>(x, out, n);
    case DType::kF64:
      return ConvertEach<From, double>(x, out, n);
    case DType::kI32:
      return ConvertEach<From, int32_t>(x, out, n);
    case DType::kI64:
      return ConvertEach<From, int64_t>(x, out, n);
    case DType::kU8:
      return ConvertEach<From, uint8_t>(x, out, n);
  }
}

// The conversions of training runs; false when (from, to) is not one of them.
bool ConvertByVectors(DType from, const void* x, DType to, void* out, int64_t n) {
  const auto is = [&](DType a, DType b) { return from == a && to == b; };
  const float* floats = static_cast<const float*>(x);
  const uint16_t* halves = static_cast<const uint16_t*>(x);
  if (is(DType::kF32, DType::kBF16)) {
    HWY_DYNAMIC_DISPATCH(FloatToBF16)(floats, static_cast<uint16_t*>(out), n);
  } else if (is(DType::kF32, DType::kF16)) {
    HWY_DYNAMIC_DISPATCH(FloatToF16)(floats, static_cast<uint16_t*>(out), n);
  } else if (is(DType::kBF16, DType::kF32)) {
    HWY_DYNAMIC_DISPATCH(BF16ToFloat)(halves, static_cast<float*>(out), n);
  } else if (is(DType::kF16, DType::kF32)) {
    HWY_DYNAMIC_DISPATCH(F16ToFloat)(halves, static_cast<float*>(out), n);
  } else {
    return false;
  }
  return true;
}

}  // namespace

void ConvertRun(DType from, const void* x, DType to, void* out, int64_t n) {
  if (from == to) {
    std::memmove(out, x, static_cast<size_t>(n * SizeOf(from)));
    return;
  }
  if (ConvertByVectors(from, x, to, out, n)) return;
  switch (from) {
    case DType::kF32:
      return ConvertFrom<float>(x, to, out, n);
    case DType::kBF16:
      return ConvertFrom<BF16>(x, to, out, n);
    case DType::kF16:
      return ConvertFrom<F16>(x, to, out, n);
    case DType::kF64:
      return ConvertFrom<double>(x, to, out, n);
    case DType::kI32:
      return ConvertFrom<int32_t>(x, to, out, n);
    case DType::kI64:
      return ConvertFrom<int64_t>(x, to, out, n);
    case DType::kU8:
      return ConvertFrom<uint8_t>(x, to, out, n);
  }
}

void ConvertScalar(double value, DType to, void* out) { ConvertFrom<double>(&value, to, out, 1); }

Tensor AsContiguousF32(const Tensor& weight) {
  if (weight.dtype() == DType::kF32 && weight.IsContiguous()) return weight;
  Tensor result = Tensor::Contiguous(weight.shape());
  const int64_t size = SizeOf(weight.dtype());
  ParallelRuns({weight, result}, [&](const RunOffsets& at, int64_t count) {
    ConvertRun(weight.dtype(), static_cast<const char*>(weight.raw()) + at.at(0) * size,
               DType::kF32, result.data<float>() + at.at(1), count);
  });
  return result;
}

}  // namespace meshfold::cpu
#endif  // HWY_ONCE
