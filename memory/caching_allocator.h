// A named memory pool with a hard limit that keeps freed blocks for the next tensor of that size,
// so that training allocates nothing from the system in steady state.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/tensor/allocator.h"

namespace meshfold::memory {

// Reuse policy. A request is rounded up to a block size (BlockSize: multiples of 64 B, above 512 B
// eight sizes per power of two, so at most 12.5 % more). It takes the smallest cached block that
// fits and is no larger than its block size, or than 1.25 of it from 64 KiB on: row counts of
// experts differ from step to step, and near sizes share blocks instead of piling up. A repeated
// sequence of requests below 64 KiB needs no new block from its second round on; above, sharing may
// ask for a few more in the next rounds, until every request finds a fitting block free.
//
// When a new block is needed, cached blocks that lay idle for the last 2^17 calls go back to the
// system, and as many more, coldest first, as the limit asks for.
//
// Host blocks of 2 MiB and more start at multiples of 2 MiB and are marked for huge pages
// (measured: a third of the time for first touches, half the time for random reads); the up to
// 2 MiB of address space before them are never touched and not counted.
//
// Thread-safe; `upstream` is called under the pool's lock. Under AddressSanitizer cached memory and
// the rounded-up tail of blocks are poisoned, so that use after free is still found.
class CachingAllocator final : public Allocator {
 public:
  // `name` appears in errors ("device"). `upstream` must outlive the pool and serve `device`
  // memory. `limit_bytes` bounds live plus cached block bytes; 0: no limit.
  CachingAllocator(std::string name, DeviceKind device, Allocator& upstream, int64_t limit_bytes);
  // All blocks must have been freed: a check failure otherwise.
  ~CachingAllocator() override;
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  // ResourceExhausted with pool, asked bytes, live bytes and limit when the request does not fit
  // beside the live blocks, or with the upstream's words when the system has no more.
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  // A block that is not live here is a check failure.
  void Free(void* block, int64_t bytes) override;
  AllocatorStats stats() const override;
  DeviceKind device() const override { return device_; }

  const std::string& name() const { return name_; }
  int64_t limit_bytes() const { return limit_bytes_; }

  // Gives cached blocks back to the system, coldest first, until at most `keep_bytes` are cached.
  // Returns the bytes given back. Call it where the set of sizes changes for good: after loading,
  // before and after an evaluation with another batch.
  int64_t Trim(int64_t keep_bytes = 0);

  // Starts a new peak at the present live bytes.
  void ResetPeak();

  // The size of the block that serves a request of `bytes`.
  static int64_t BlockSize(int64_t bytes);

 private:
  struct Block {
    int64_t size = 0;        // usable bytes
    void* system = nullptr;  // what upstream gave, and how much was asked of it
    int64_t system_bytes = 0;
    bool live = false;
  };
  struct Cached {
    void* address;
    int64_t last_use;  // clock_ when freed: ascending in a list
  };

  void* TakeCached(int64_t bytes);
  absl::StatusOr<void*> NewBlock(int64_t bytes);
  absl::Status MakeRoom(int64_t bytes, int64_t& size);
  absl::StatusOr<Block> FromSystem(int64_t size);
  int64_t ReleaseColdest(int64_t keep_bytes, int64_t used_before);
  void Release(void* address);
  int64_t cached_bytes() const { return stats_.reserved_bytes - stats_.live_bytes; }

  const std::string name_;
  const DeviceKind device_;
  Allocator& upstream_;
  const int64_t limit_bytes_;

  mutable std::mutex mutex_;
  AllocatorStats stats_;                         // guarded by mutex_, as all below
  int64_t clock_ = 0;                            // calls of Allocate and Free
  absl::flat_hash_map<void*, Block> blocks_;     // every block, live or cached
  std::map<int64_t, std::vector<Cached>> free_;  // by size; emptied lists stay
};

}  // namespace meshfold::memory
