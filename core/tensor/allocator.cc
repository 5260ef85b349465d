#include "core/tensor/allocator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace meshfold {
namespace {

class SystemAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    int64_t size = RoundUp(bytes);
    void* block = std::aligned_alloc(kAlignment, static_cast<size_t>(size));
    if (block == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system gave no memory for ", bytes, " bytes"));
    }
    int64_t live = live_bytes_.fetch_add(size) + size;
    int64_t peak = peak_.load();
    while (live > peak && !peak_.compare_exchange_weak(peak, live)) {
    }
    num_allocations_.fetch_add(1);
    return block;
  }
  void Free(void* block, int64_t bytes) override {
    live_bytes_.fetch_sub(RoundUp(bytes));
    std::free(block);
  }
  AllocatorStats stats() const override {
    AllocatorStats stats;
    stats.live_bytes = stats.reserved_bytes = live_bytes_.load();
    stats.peak_live_bytes = peak_.load();
    stats.num_allocations = stats.num_system_allocations = num_allocations_.load();
    return stats;
  }
  DeviceKind device() const override { return DeviceKind::kHost; }

 private:
  static int64_t RoundUp(int64_t bytes) {
    return std::max<int64_t>(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  std::atomic<int64_t> live_bytes_{0}, peak_{0}, num_allocations_{0};
};

}  // namespace

Allocator& SystemHostAllocator() {
  static SystemAllocator* allocator = new SystemAllocator;
  return *allocator;
}

}  // namespace meshfold
