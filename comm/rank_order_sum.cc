#include "comm/rank_order_sum.h"

#include <algorithm>

#include "core/base/check.h"

namespace meshfold::comm {
namespace {

// Elements summed at a time: they stay in the first-level cache while the parts pass.
constexpr int64_t kBlock = 2048;

// T is unsigned for integers, whose sums are then defined when they wrap around.
template <typename T>
void Sum(absl::Span<const void* const> parts, int64_t begin, int64_t end,
         absl::Span<void* const> outs) {
  T sum[kBlock];
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t count = std::min(kBlock, end - at);
    std::copy_n(static_cast<const T*>(parts[0]) + at, count, sum);
    for (const void* part : parts.subspan(1)) {
      const T* values = static_cast<const T*>(part) + at;
      for (int64_t i = 0; i < count; ++i) sum[i] += values[i];
    }
    for (void* out : outs) std::copy_n(sum, count, static_cast<T*>(out) + at);
  }
}

}  // namespace

void SumInRankOrder(DType dtype, absl::Span<const void* const> parts, int64_t begin, int64_t end,
                    absl::Span<void* const> outs) {
  switch (dtype) {
    case DType::kF32:
      return Sum<float>(parts, begin, end, outs);
    case DType::kI32:
      return Sum<uint32_t>(parts, begin, end, outs);
    case DType::kI64:
      return Sum<uint64_t>(parts, begin, end, outs);
    default:
      MF_CHECK(false) << " sums of " << DTypeName(dtype) << " are not defined";
  }
}

}  // namespace meshfold::comm
