// Where tensor memory comes from. memory/ implements pools with limits; the plain host allocator
// here serves tests and file buffers.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace meshfold {

// Whose address space a pointer belongs to. Kernels read device pointers; the host must not.
enum class DeviceKind : uint8_t { kHost, kCuda };

// Counters of one allocator, in bytes as handed out (after rounding up to the block size).
struct AllocatorStats {
  int64_t live_bytes = 0;       // held by tensors now
  int64_t peak_live_bytes = 0;  // largest live_bytes so far
  int64_t reserved_bytes = 0;   // taken from the system: live plus cached
  int64_t num_allocations = 0;  // calls to Allocate so far
  int64_t num_system_allocations =
      0;  // of those, how many went to the system: 0 a step in steady state
};

// Thread-safe. Blocks are aligned to kAlignment bytes.
class Allocator {
 public:
  static constexpr int64_t kAlignment = 64;

  virtual ~Allocator() = default;
  // A block of at least `bytes` bytes (bytes >= 0; zero gives a valid, distinct pointer), contents
  // unspecified. ResourceExhausted with the pool's name, limit and use when it does not fit.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  // Returns a block; `bytes` as it was asked for.
  virtual void Free(void* block, int64_t bytes) = 0;
  virtual AllocatorStats stats() const = 0;
  virtual DeviceKind device() const = 0;
};

// The system's aligned allocator with counters and no cache. Never destroyed, stateless but for
// its counters.
Allocator& SystemHostAllocator();

}  // namespace meshfold
