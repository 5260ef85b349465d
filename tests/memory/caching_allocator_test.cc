#include "memory/caching_allocator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::memory {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

// A block that frees itself; `bytes` are written so that a wrong size shows under a sanitizer.
class Held {
 public:
  Held(CachingAllocator& pool, int64_t bytes, uint8_t mark)
      : pool_(&pool), bytes_(bytes), mark_(mark) {
    absl::StatusOr<void*> block = pool.Allocate(bytes);
    EXPECT_TRUE(block.ok()) << block.status();
    block_ = static_cast<uint8_t*>(*block);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block_) % Allocator::kAlignment, 0u);
    if (bytes == 0) return;
    std::memset(block_, mark, static_cast<size_t>(std::min<int64_t>(bytes, 4096)));
    block_[bytes - 1] = mark;
  }
  Held(Held&& other) noexcept { Swap(other); }
  Held& operator=(Held&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~Held() {
    if (block_ == nullptr) return;
    EXPECT_TRUE(bytes_ == 0 || (block_[0] == mark_ && block_[bytes_ - 1] == mark_))
        << "block overwritten";
    pool_->Free(block_, bytes_);
  }
  void* address() const { return block_; }

 private:
  void Swap(Held& other) {
    std::swap(pool_, other.pool_);
    std::swap(bytes_, other.bytes_);
    std::swap(mark_, other.mark_);
    std::swap(block_, other.block_);
  }

  CachingAllocator* pool_ = nullptr;
  int64_t bytes_ = 0;
  uint8_t mark_ = 0;
  uint8_t* block_ = nullptr;
};

// One round of a repeatable mixture of sizes and lifetimes.
void ReplayTrace(CachingAllocator& pool, uint64_t seed, int64_t max_bytes, int rounds = 400) {
  uint64_t state = seed;
  auto random = [&state](int64_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(below));
  };
  std::vector<Held> held;
  for (int i = 0; i < rounds; ++i) {
    if (held.size() < 4 || random(2) == 0) {
      held.emplace_back(pool, random(max_bytes), static_cast<uint8_t>(i));
    } else {
      std::swap(held[static_cast<size_t>(random(static_cast<int64_t>(held.size())))], held.back());
      held.pop_back();
    }
  }
}

TEST(CachingAllocatorTest, RoundsUpByAnEighthAtMost) {
  EXPECT_EQ(CachingAllocator::BlockSize(0), 64);
  EXPECT_EQ(CachingAllocator::BlockSize(64), 64);
  EXPECT_EQ(CachingAllocator::BlockSize(65), 128);
  EXPECT_EQ(CachingAllocator::BlockSize(1025), 1152);
  EXPECT_EQ(CachingAllocator::BlockSize(kMiB), kMiB);
  EXPECT_EQ(CachingAllocator::BlockSize(kMiB + 1), kMiB + kMiB / 8);
  for (int64_t bytes = 512; bytes < 100000; bytes += 37) {
    const int64_t size = CachingAllocator::BlockSize(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_EQ(size % Allocator::kAlignment, 0);
    EXPECT_LE(size, bytes + bytes / 8 + Allocator::kAlignment);
    EXPECT_EQ(CachingAllocator::BlockSize(size), size);
  }
}

TEST(CachingAllocatorTest, ReusesABlockOfTheSameSize) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  void* first = Held(pool, 1000, 1).address();
  EXPECT_EQ(Held(pool, 1020, 2).address(), first);
  EXPECT_NE(Held(pool, 300, 3).address(), first) << "a small request took a larger block";
  EXPECT_EQ(pool.stats().num_system_allocations, 2);
  EXPECT_EQ(pool.stats().num_allocations, 3);
  EXPECT_EQ(pool.stats().live_bytes, 0);
  EXPECT_EQ(pool.stats().reserved_bytes, 1024 + 320);
  EXPECT_EQ(pool.stats().peak_live_bytes, 1024);
}

TEST(CachingAllocatorTest, LargeBlocksServeNearSizes) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  void* first = Held(pool, 10 * kMiB, 1).address();
  EXPECT_EQ(Held(pool, 8 * kMiB, 2).address(), first);
  Held(pool, 7 * kMiB, 3);  // 10 MiB is more than 1.25 of it
  EXPECT_EQ(pool.stats().num_system_allocations, 2);
}

TEST(CachingAllocatorTest, ZeroBytesGiveDistinctBlocks) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  Held a(pool, 0, 1), b(pool, 0, 2);
  EXPECT_NE(a.address(), nullptr);
  EXPECT_NE(a.address(), b.address());
}

TEST(CachingAllocatorTest, ReplayedTraceNeedsNoNewBlocks) {
  for (const int64_t max_bytes : {int64_t{4000}, 300 * int64_t{1024}, 3 * kMiB}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
      // Blocks that near sizes share take a few rounds to settle.
      for (int round = 0; round < (max_bytes <= 60000 ? 1 : 6); ++round) {
        ReplayTrace(pool, seed, max_bytes);
      }
      const int64_t warm = pool.stats().num_system_allocations;
      for (int round = 0; round < 4; ++round) ReplayTrace(pool, seed, max_bytes);
      EXPECT_EQ(pool.stats().num_system_allocations, warm) << max_bytes << " seed " << seed;
      EXPECT_GT(pool.stats().num_allocations, 5 * 150);
    }
  }
}

// Row counts of experts wander: the cache must not keep a block for every size ever seen.
TEST(CachingAllocatorTest, WanderingSizesKeepTheReserveNearThePeak) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  uint64_t state = 7;
  for (int step = 0; step < 300; ++step) {
    std::vector<Held> held;
    for (int expert = 0; expert < 8; ++expert) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      held.emplace_back(pool, (100 + static_cast<int64_t>((state >> 33) % 60)) << 10, 1);
    }
  }
  EXPECT_LT(pool.stats().reserved_bytes, 2 * pool.stats().peak_live_bytes);
}

TEST(CachingAllocatorTest, RefusesWhatDoesNotFitTheLimit) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 4 * kMiB);
  Held a(pool, 3 * kMiB, 1);
  const absl::StatusOr<void*> refused = pool.Allocate(kMiB + 1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.status().message());
  EXPECT_THAT(message, HasSubstr("pool 'device' is full"));
  EXPECT_THAT(message, HasSubstr("1.00 MiB (1048577 bytes) asked"));
  EXPECT_THAT(message, HasSubstr("3.00 MiB (3145728 bytes) live"));
  EXPECT_THAT(message, HasSubstr("limit of 4.00 MiB (4194304 bytes)"));
  Held b(pool, kMiB, 2);  // exactly what is left
  EXPECT_EQ(pool.stats().live_bytes, 4 * kMiB);
  EXPECT_FALSE(pool.Allocate(1).ok());
}

TEST(CachingAllocatorTest, LimitIsExactToOneAlignedBlock) {
  // 1.0625 MiB would round up to 1.125 MiB, above the limit; it is served nevertheless.
  const int64_t bytes = kMiB + kMiB / 16;
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), bytes);
  void* first = Held(pool, bytes, 1).address();
  EXPECT_EQ(Held(pool, bytes, 2).address(), first);
  EXPECT_EQ(pool.stats().reserved_bytes, bytes);
}

TEST(CachingAllocatorTest, CachedBlocksMakeWayAtTheLimit) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 4 * kMiB);
  { Held a(pool, kMiB, 1), b(pool, kMiB, 2), c(pool, 2 * kMiB, 3); }
  Held d(pool, 3 * kMiB, 4);
  EXPECT_LE(pool.stats().reserved_bytes, 4 * kMiB);
  EXPECT_EQ(pool.stats().live_bytes, 3 * kMiB);
}

// A system with `capacity` bytes.
class SmallSystem : public Allocator {
 public:
  explicit SmallSystem(int64_t capacity) : capacity_(capacity) {}
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (bytes > capacity_ - used_) return absl::ResourceExhaustedError("no memory left");
    used_ += bytes;
    return SystemHostAllocator().Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override {
    used_ -= bytes;
    SystemHostAllocator().Free(block, bytes);
  }
  AllocatorStats stats() const override { return {.live_bytes = used_}; }
  DeviceKind device() const override { return DeviceKind::kHost; }

 private:
  int64_t capacity_, used_ = 0;
};

TEST(CachingAllocatorTest, RefusesAbsurdSizes) {
  SmallSystem system(kMiB);
  for (int64_t limit : {int64_t{0}, kMiB}) {
    CachingAllocator pool("host", DeviceKind::kHost, system, limit);
    for (int64_t bytes : {INT64_MAX, INT64_MAX - 64, (int64_t{1} << 62) + 1, int64_t{1} << 60}) {
      EXPECT_EQ(pool.Allocate(bytes).status().code(), absl::StatusCode::kResourceExhausted);
    }
    EXPECT_EQ(pool.stats().reserved_bytes, 0);
  }
}

TEST(CachingAllocatorTest, GivesItsCacheBackBeforeItReportsAFullSystem) {
  SmallSystem system(kMiB);
  CachingAllocator pool("device", DeviceKind::kHost, system, 0);
  { Held a(pool, 600 << 10, 1); }
  { Held b(pool, 900 << 10, 2); }
  Held c(pool, 512 << 10, 3);
  EXPECT_EQ(system.stats().live_bytes, 512 << 10);
  const absl::Status refused = pool.Allocate(600 << 10).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("pool 'device' cannot grow by 640.00 KiB beside 512.00 KiB live: no memory"));
}

TEST(CachingAllocatorTest, TrimKeepsWhatIsAsked) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  void* warm = nullptr;
  {
    Held a(pool, kMiB, 1);
    { Held b(pool, 2 * kMiB, 2); }
    warm = a.address();
  }
  EXPECT_EQ(pool.Trim(kMiB), 2 * kMiB);
  EXPECT_EQ(pool.stats().reserved_bytes, kMiB);
  EXPECT_EQ(Held(pool, kMiB, 3).address(), warm) << "the coldest block goes first";
  EXPECT_EQ(pool.Trim(), kMiB);
  EXPECT_EQ(pool.stats().reserved_bytes, 0);
}

TEST(CachingAllocatorTest, BlocksLongUnusedGoBackWhenTheSetOfSizesChanges) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  { Held old(pool, 10 * kMiB, 1); }
  for (int i = 0; i < 70000; ++i) Held(pool, 100, 2);
  EXPECT_GE(pool.stats().reserved_bytes, 10 * kMiB);
  Held other(pool, kMiB, 3);
  EXPECT_EQ(pool.stats().reserved_bytes, 128 + kMiB);
}

TEST(CachingAllocatorTest, ResetPeakStartsAtTheLiveBytes) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  Held a(pool, kMiB, 1);
  { Held b(pool, 4 * kMiB, 2); }
  EXPECT_EQ(pool.stats().peak_live_bytes, 5 * kMiB);
  pool.ResetPeak();
  EXPECT_EQ(pool.stats().peak_live_bytes, kMiB);
}

TEST(CachingAllocatorTest, ServesTensors) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  {
    const Tensor view = Tensor::Contiguous({3, 5}, DType::kF32, pool).Narrow(1, 1);
    EXPECT_EQ(pool.stats().live_bytes, 64) << "a view keeps its block";
  }
  EXPECT_EQ(pool.stats().live_bytes, 0);
}

TEST(CachingAllocatorTest, ThreadsDoNotDisturbEachOther) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&pool, seed] { ReplayTrace(pool, seed, 70000, 2000); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.stats().live_bytes, 0);
  const int64_t cached = pool.stats().reserved_bytes;
  EXPECT_EQ(pool.Trim(), cached);
  EXPECT_EQ(pool.stats().reserved_bytes, 0);
}

using CachingAllocatorDeathTest = ::testing::Test;

TEST(CachingAllocatorDeathTest, DoubleFreeIsABug) {
  CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
  void* block = pool.Allocate(100).value();
  pool.Free(block, 100);
  EXPECT_DEATH(pool.Free(block, 100), "pool 'device' holds no live block of 100 bytes");
}

TEST(CachingAllocatorDeathTest, EndingBeforeATensorIsABug) {
  EXPECT_DEATH(
      {
        CachingAllocator pool("device", DeviceKind::kHost, SystemHostAllocator(), 0);
        (void)pool.Allocate(100);
      },
      "pool 'device' ends before its tensors");
}

}  // namespace
}  // namespace meshfold::memory
