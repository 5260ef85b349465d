#include "comm/rank_order_sum.h"

#include <algorithm>

#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/rank_order_sum.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::comm::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// sum[i] = a[i] + b[i]; `a` may be `sum`. T is unsigned for integers, whose sums are then defined
// when they wrap around.
template <typename T>
void Add(const T* a, const T* b, T* sum, int64_t count) {
  const hn::ScalableTag<T> tag;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(tag));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Add(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i)), tag, sum + i);
  }
  for (; i < count; ++i) sum[i] = a[i] + b[i];
}

template <typename T>
void AddAs(const void* a, const void* b, void* sum, int64_t bytes) {
  Add(static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(sum),
      bytes / static_cast<int64_t>(sizeof(T)));
}

void AddBytes(DType dtype, const void* a, const void* b, void* sum, int64_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return AddAs<float>(a, b, sum, bytes);
    case DType::kI32:
      return AddAs<uint32_t>(a, b, sum, bytes);
    case DType::kI64:
      return AddAs<uint64_t>(a, b, sum, bytes);
    default:
      return;  // refused before
  }
}

}  // namespace
}  // namespace meshfold::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold::comm {

HWY_EXPORT(AddBytes);

namespace {

// Bytes summed at a time: they stay in the first-level cache while the parts pass. The sum stands
// apart until all have, since an output may be a part.
constexpr int64_t kBlockBytes = 8192;

}  // namespace

void SumInRankOrder(DType dtype, absl::Span<const void* const> parts, int64_t begin, int64_t end,
                    absl::Span<void* const> outs) {
  MF_CHECK(dtype == DType::kF32 || dtype == DType::kI32 || dtype == DType::kI64)
      << " sums of " << DTypeName(dtype) << " are not defined";
  const int64_t element = SizeOf(dtype);
  const auto at_byte = [](const void* data, int64_t byte) {
    return static_cast<const char*>(data) + byte;
  };
  alignas(64) char block[kBlockBytes];
  for (int64_t at = begin * element; at < end * element; at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, end * element - at);
    const void* sum = at_byte(parts[0], at);
    for (const void* part : parts.subspan(1)) {
      HWY_DYNAMIC_DISPATCH(AddBytes)(dtype, sum, at_byte(part, at), block, bytes);
      sum = block;
    }
    for (void* out : outs) {
      char* to = static_cast<char*>(out) + at;
      if (to != sum) std::copy_n(static_cast<const char*>(sum), bytes, to);
    }
  }
}

}  // namespace meshfold::comm
#endif  // HWY_ONCE
