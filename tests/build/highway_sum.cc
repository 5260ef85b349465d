// The kernel is compiled once for each vector width, by including this file again from Highway's
// foreach_target.h; the part under HWY_ONCE is compiled once.
#include "tests/build/highway_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/build/highway_sum.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::build_test::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

float Sum(const float* values, size_t n) {
  const hn::ScalableTag<float> tag;
  const size_t lanes = hn::Lanes(tag);
  auto sums = hn::Zero(tag);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) sums = hn::Add(sums, hn::LoadU(tag, values + i));
  float sum = hn::GetLane(hn::SumOfLanes(tag, sums));
  for (; i < n; ++i) sum += values[i];
  return sum;
}

}  // namespace meshfold::build_test::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold::build_test {

HWY_EXPORT(Sum);

float HighwaySum(absl::Span<const float> values) {
  float sum = 0;
  const int64_t half = values.size() / 2;
#pragma omp parallel for reduction(+ : sum)
  for (int part = 0; part < 2; ++part) {
    const auto piece = part == 0 ? values.subspan(0, half) : values.subspan(half);
    sum += HWY_DYNAMIC_DISPATCH(Sum)(piece.data(), piece.size());
  }
  return sum;
}

}  // namespace meshfold::build_test
#endif  // HWY_ONCE
