// Pieces of vector kernels, compiled once for each instruction set: loops with a short last step,
// exponentials that keep NaN, 16-bit conversions. Include after foreach_target.h and highway.h.
//
// Lambdas passed to VectorLoop need HWY_ATTR, else GCC compiles them without the vector set.
#if defined(MESHFOLD_CORE_BACKEND_CPU_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHFOLD_CORE_BACKEND_CPU_VECTOR_MATH_INL_H_
#undef MESHFOLD_CORE_BACKEND_CPU_VECTOR_MATH_INL_H_
#else
#define MESHFOLD_CORE_BACKEND_CPU_VECTOR_MATH_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "core/tensor/dtype.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

inline constexpr int64_t kFloatLanes = HWY_LANES(float);

// Loads and stores of one loop step over a whole vector.
struct WholeStep {
  HWY_INLINE FloatVec Load(const float* p) const { return hn::LoadU(FloatTag(), p); }
  HWY_INLINE void Store(FloatVec v, float* p) const { hn::StoreU(v, FloatTag(), p); }
  // `v` with `fill` in the lanes that the step does not have.
  HWY_INLINE FloatVec Fill(FloatVec v, float /*fill*/) const { return v; }
};

// The same over the first `n` lanes: absent lanes load as zero and are not stored.
struct PartStep {
  size_t n;

  HWY_INLINE FloatVec Load(const float* p) const {
#if HWY_MEM_OPS_MIGHT_FAULT
    HWY_ALIGN float lanes[kFloatLanes] = {};
    std::memcpy(lanes, p, n * sizeof(float));
    return hn::Load(FloatTag(), lanes);
#else
    return hn::MaskedLoad(hn::FirstN(FloatTag(), n), FloatTag(), p);
#endif
  }
  HWY_INLINE void Store(FloatVec v, float* p) const {
#if HWY_MEM_OPS_MIGHT_FAULT
    HWY_ALIGN float lanes[kFloatLanes];
    hn::Store(v, FloatTag(), lanes);
    std::memcpy(p, lanes, n * sizeof(float));
#else
    hn::BlendedStore(v, hn::FirstN(FloatTag(), n), FloatTag(), p);
#endif
  }
  HWY_INLINE FloatVec Fill(FloatVec v, float fill) const {
    return hn::IfThenElse(hn::FirstN(FloatTag(), n), v, hn::Set(FloatTag(), fill));
  }
};

// Calls body(i, step) for i = 0, lanes, 2 lanes, ... < n. Lane operations give an element the same
// bits in either kind of step.
template <class Body>
HWY_INLINE void VectorLoop(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + kFloatLanes <= n; i += kFloatLanes) body(i, WholeStep{});
  if (i < n) body(i, PartStep{static_cast<size_t>(n - i)});
}

// For loops over memory that no cache holds: the hardware's own fetching stops at every 4 KiB page,
// and begins anew for each stream.
inline constexpr int64_t kFetchAheadFloats = 512;
HWY_INLINE void FetchAhead(const float* p) { __builtin_prefetch(p + kFetchAheadFloats, 0, 3); }
HWY_INLINE void FetchAheadToWrite(const float* p) {
  __builtin_prefetch(p + kFetchAheadFloats, 1, 3);
}

HWY_INLINE float SumLanes(FloatVec v) { return hn::GetLane(hn::SumOfLanes(FloatTag(), v)); }

// e^x for x <= 0, within 2 ulp. NaN stays NaN, which hn::Exp alone would turn into 0.
HWY_INLINE FloatVec ExpNotPositive(FloatVec x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(FloatTag(), x));
}

// 1 / (1 + e^-x) without overflow on either side.
HWY_INLINE FloatVec SigmoidOf(FloatVec x) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0f);
  const FloatVec e = ExpNotPositive(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

// f32 bits to 16 bits in the low half of each lane, as ToBF16 and ToF16 of core/tensor/dtype.h.
using UintVec = hn::Vec<hn::RebindToUnsigned<FloatTag>>;

HWY_INLINE UintVec RoundedBF16(UintVec bits) {
  const hn::RebindToUnsigned<FloatTag> d;
  const UintVec magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
  const auto is_nan = hn::Gt(hn::BitCast(hn::RebindToSigned<FloatTag>(), magnitude),
                             hn::Set(hn::RebindToSigned<FloatTag>(), 0x7f800000));
  const UintVec odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const UintVec rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu)));
  const UintVec quiet = hn::Or(bits, hn::Set(d, 0x400000u));
  return hn::ShiftRight<16>(hn::IfThenElse(hn::RebindMask(d, is_nan), quiet, rounded));
}

HWY_INLINE UintVec RoundedF16(UintVec bits) {
  const hn::RebindToUnsigned<FloatTag> d;
  const hn::RebindToSigned<FloatTag> di;
  const FloatTag df;
  const UintVec magnitude = hn::And(bits, hn::Set(d, 0x7fffffffu));
  const auto above = [&](int32_t limit) HWY_ATTR {
    return hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, limit)));
  };
  // Adding 0.5 aligns a subnormal's mantissa, so that the addition rounds it.
  const UintVec subnormal =
      hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(df, magnitude), hn::Set(df, 0.5f))),
              hn::Set(d, 0x3f000000u));
  const UintVec odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
  const UintVec normal =
      hn::ShiftRight<13>(hn::Add(hn::Sub(magnitude, hn::Set(d, 0x38000000u - 0xfffu)), odd));
  UintVec half = hn::IfThenElse(above(0x387fffff), normal, subnormal);
  half = hn::IfThenElse(above(0x477fefff), hn::Set(d, 0x7c00u), half);
  half = hn::IfThenElse(above(0x7f800000), hn::Set(d, 0x7e00u), half);
  return hn::Or(half, hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 0x8000u)));
}

// f16 bits in the low half of each lane to f32. hn::PromoteTo loses infinities where it is
// emulated.
HWY_INLINE FloatVec WidenedF16(UintVec half) {
  const hn::RebindToUnsigned<FloatTag> d;
  const hn::RebindToSigned<FloatTag> di;
  const FloatTag df;
  const UintVec magnitude = hn::And(half, hn::Set(d, 0x7fffu));
  const auto signed_magnitude = hn::BitCast(di, magnitude);
  const UintVec shifted = hn::ShiftLeft<13>(magnitude);
  const UintVec normal = hn::Add(shifted, hn::Set(d, 0x38000000u));
  const UintVec special = hn::Add(shifted, hn::Set(d, 0x70000000u));
  const UintVec subnormal =
      hn::BitCast(d, hn::Mul(hn::ConvertTo(df, signed_magnitude), hn::Set(df, 0x1p-24f)));
  UintVec bits = hn::IfThenElse(hn::RebindMask(d, hn::Gt(signed_magnitude, hn::Set(di, 0x3ff))),
                                normal, subnormal);
  bits = hn::IfThenElse(hn::RebindMask(d, hn::Gt(signed_magnitude, hn::Set(di, 0x7bff))), special,
                        bits);
  const UintVec sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d, 0x8000u)));
  return hn::BitCast(df, hn::Or(bits, sign));
}

}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MESHFOLD_CORE_BACKEND_CPU_VECTOR_MATH_INL_H_
