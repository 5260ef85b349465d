// A shorter exponential than Highway's for the loops between matrix products, where it is most of
// the time that is not spent in them. Compiled once for each instruction set; include after
// foreach_target.h and highway.h.
#if defined(MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_EXP_INL_H_
#undef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_EXP_INL_H_
#else
#define MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_EXP_INL_H_
#endif

#include "core/backend/cpu/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {

// e^x for x <= 1, within 2 ulp; 0 where e^x would be below the normal numbers. NaN stays NaN.
// Reduction to |r| <= ln(2) / 2 and Cephes' polynomial (Moshier 1989, expf).
HWY_INLINE FloatVec ShortExp(FloatVec x) {
  const FloatTag d;
  // Adding 1.5 2^23 rounds to an integer n; the 127 more leave the exponent bits of 2^n at the end.
  const FloatVec magic = hn::Set(d, 12582912.0f + 127.0f);
  const FloatVec biased = hn::MulAdd(x, hn::Set(d, 1.44269504f), magic);
  const FloatVec n = hn::Sub(biased, magic);
  FloatVec r = hn::NegMulAdd(n, hn::Set(d, 0.693145751953125f), x);  // ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  FloatVec p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  const hn::RebindToUnsigned<FloatTag> du;
  const FloatVec power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, biased)));
  const FloatVec smallest = hn::Set(d, -87.3365f);
  return hn::IfThenElse(hn::Lt(x, smallest), hn::Zero(d), hn::Mul(p, power));
}

// 1 / (1 + e^-x) without overflow on either side.
HWY_INLINE FloatVec ShortSigmoid(FloatVec x) {
  const FloatTag d;
  const FloatVec one = hn::Set(d, 1.0f);
  const FloatVec e = ShortExp(hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_EXP_INL_H_
