#include "memory/caching_allocator.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "memory/pool_limits.h"

namespace meshfold::memory {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSharedFrom = int64_t{64} << 10;  // blocks that near sizes may share
constexpr int64_t kColdAfter = int64_t{1} << 17;    // calls; many training steps
constexpr int64_t kMaxRequest = int64_t{1} << 62;   // larger ones would overflow when rounded

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

int64_t SmallestBlock(int64_t bytes) {
  return RoundUp(std::max<int64_t>(bytes, 1), Allocator::kAlignment);
}

}  // namespace

CachingAllocator::CachingAllocator(std::string name, DeviceKind device, Allocator& upstream,
                                   int64_t limit_bytes)
    : name_(std::move(name)), device_(device), upstream_(upstream), limit_bytes_(limit_bytes) {
  MF_CHECK_GE(limit_bytes, 0);
}

CachingAllocator::~CachingAllocator() {
  Trim();
  MF_CHECK_EQ(stats_.live_bytes, 0) << "pool '" << name_ << "' ends before its tensors";
}

int64_t CachingAllocator::BlockSize(int64_t bytes) {
  const int64_t size = SmallestBlock(bytes);
  const int64_t power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size)));
  return RoundUp(size, std::max(kAlignment, power / 8));
}

absl::StatusOr<void*> CachingAllocator::Allocate(int64_t bytes) {
  MF_CHECK_GE(bytes, 0);
  std::lock_guard<std::mutex> lock(mutex_);
  ++stats_.num_allocations;
  ++clock_;
  void* address = bytes <= kMaxRequest ? TakeCached(bytes) : nullptr;
  if (address == nullptr) {
    MF_ASSIGN_OR_RETURN(address, NewBlock(bytes));
  }
  Block& block = blocks_.at(address);
  block.live = true;
  stats_.live_bytes += block.size;
  stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
  if (device_ == DeviceKind::kHost) {
    ASAN_POISON_MEMORY_REGION(address, static_cast<size_t>(block.size));
    ASAN_UNPOISON_MEMORY_REGION(address, static_cast<size_t>(bytes));
  }
  return address;
}

void CachingAllocator::Free(void* address, int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = blocks_.find(address);
  MF_CHECK(it != blocks_.end() && it->second.live && bytes <= it->second.size)
      << "pool '" << name_ << "' holds no live block of " << bytes << " bytes at " << address;
  Block& block = it->second;
  block.live = false;
  stats_.live_bytes -= block.size;
  if (device_ == DeviceKind::kHost) {
    ASAN_POISON_MEMORY_REGION(address, static_cast<size_t>(block.size));
  }
  free_[block.size].push_back({address, ++clock_});
}

AllocatorStats CachingAllocator::stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

int64_t CachingAllocator::Trim(int64_t keep_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  return ReleaseColdest(keep_bytes, std::numeric_limits<int64_t>::max());
}

void CachingAllocator::ResetPeak() {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.peak_live_bytes = stats_.live_bytes;
}

// A cached block for a request, taken off its list, or null.
void* CachingAllocator::TakeCached(int64_t bytes) {
  const int64_t size = BlockSize(bytes);
  const int64_t largest = size >= kSharedFrom ? size + size / 4 : size;
  for (auto it = free_.lower_bound(SmallestBlock(bytes)); it != free_.end(); ++it) {
    if (it->first > largest) break;
    if (it->second.empty()) continue;
    void* address = it->second.back().address;
    it->second.pop_back();
    return address;
  }
  return nullptr;
}

absl::StatusOr<void*> CachingAllocator::NewBlock(int64_t bytes) {
  ReleaseColdest(0, clock_ - kColdAfter);
  int64_t size = 0;
  MF_RETURN_IF_ERROR(MakeRoom(bytes, size));
  absl::StatusOr<Block> block = FromSystem(size);
  if (!block.ok() && cached_bytes() > 0) {  // fragmented: the system may serve it from our cache
    ReleaseColdest(0, std::numeric_limits<int64_t>::max());
    block = FromSystem(size);
  }
  if (!block.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("pool '", name_, "' cannot grow by ", BytesForHumans(size), " beside ",
                     BytesForHumans(stats_.live_bytes), " live: ", block.status().message()));
  }
  ++stats_.num_system_allocations;
  stats_.reserved_bytes += size;
  void* address = block->system;
  if (block->system_bytes > size) {
    address = reinterpret_cast<void*>(
        RoundUp(static_cast<int64_t>(reinterpret_cast<uintptr_t>(address)), kHugePage));
    madvise(address, static_cast<size_t>(size), MADV_HUGEPAGE);  // advice: may fail without harm
  }
  blocks_.emplace(address, *block);
  return address;
}

// Chooses the size of a new block for `bytes` and releases cached blocks until it is within the
// limit; near the limit a block may be smaller than BlockSize.
absl::Status CachingAllocator::MakeRoom(int64_t bytes, int64_t& size) {
  const int64_t room = limit_bytes_ == 0 ? kMaxRequest : limit_bytes_ - stats_.live_bytes;
  if (bytes > kMaxRequest || SmallestBlock(bytes) > room) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "pool '", name_, "' is full: ", BytesForHumans(bytes), " (", bytes, " bytes) asked with ",
        BytesForHumans(stats_.live_bytes), " (", stats_.live_bytes, " bytes) live of a limit of ",
        limit_bytes_ == 0 ? "none" : BytesForHumans(limit_bytes_), " (", limit_bytes_, " bytes)"));
  }
  size = std::min(BlockSize(bytes), room / kAlignment * kAlignment);
  if (limit_bytes_ != 0) ReleaseColdest(room - size, std::numeric_limits<int64_t>::max());
  return absl::OkStatus();
}

absl::StatusOr<CachingAllocator::Block> CachingAllocator::FromSystem(int64_t size) {
  Block block;
  block.size = size;
  const bool huge = device_ == DeviceKind::kHost && size >= kHugePage;
  block.system_bytes = huge ? size + kHugePage : size;
  MF_ASSIGN_OR_RETURN(block.system, upstream_.Allocate(block.system_bytes));
  return block;
}

// Releases cached blocks freed before call number `used_before`, coldest first, until at most
// `keep_bytes` are cached. Returns the bytes released.
int64_t CachingAllocator::ReleaseColdest(int64_t keep_bytes, int64_t used_before) {
  const int64_t before = stats_.reserved_bytes;
  while (cached_bytes() > keep_bytes) {
    std::vector<Cached>* coldest = nullptr;
    for (auto& [size, list] : free_) {
      if (list.empty() || list.front().last_use >= used_before) continue;
      if (coldest == nullptr || list.front().last_use < coldest->front().last_use) coldest = &list;
    }
    if (coldest == nullptr) break;
    Release(coldest->front().address);
    coldest->erase(coldest->begin());
  }
  return before - stats_.reserved_bytes;
}

void CachingAllocator::Release(void* address) {
  auto it = blocks_.find(address);
  const Block block = it->second;
  blocks_.erase(it);
  stats_.reserved_bytes -= block.size;
  if (device_ == DeviceKind::kHost) {
    ASAN_UNPOISON_MEMORY_REGION(address, static_cast<size_t>(block.size));
  }
  upstream_.Free(block.system, block.system_bytes);
}

}  // namespace meshfold::memory
