#include "core/tensor/storage.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace meshfold {
namespace {

TEST(SystemHostAllocatorTest, AlignsAndCounts) {
  Allocator& allocator = SystemHostAllocator();
  const AllocatorStats before = allocator.stats();
  for (int64_t bytes : {0, 1, 63, 64, 65, 100000}) {
    void* block = *allocator.Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % Allocator::kAlignment, 0u);
    const AllocatorStats live = allocator.stats();
    EXPECT_GE(live.live_bytes - before.live_bytes, bytes);
    EXPECT_GE(live.peak_live_bytes, live.live_bytes);
    allocator.Free(block, bytes);
  }
  EXPECT_EQ(allocator.stats().live_bytes, before.live_bytes);
  EXPECT_EQ(allocator.stats().num_allocations, before.num_allocations + 6);
  EXPECT_EQ(allocator.device(), DeviceKind::kHost);
}

TEST(SystemHostAllocatorTest, ImpossibleSizeIsResourceExhausted) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer stops the program instead of returning null";
#endif
  const int64_t too_much = int64_t{1} << 60;
  EXPECT_EQ(SystemHostAllocator().Allocate(too_much).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(StorageTest, ReturnsItsBlockWithTheLastReference) {
  const int64_t before = SystemHostAllocator().stats().live_bytes;
  {
    std::shared_ptr<Storage> storage = *Storage::Allocate(1000, SystemHostAllocator());
    std::shared_ptr<Storage> second = storage;
    storage.reset();
    EXPECT_EQ(second->bytes(), 1000);
    EXPECT_GT(SystemHostAllocator().stats().live_bytes, before);
  }
  EXPECT_EQ(SystemHostAllocator().stats().live_bytes, before);
}

TEST(StorageTest, ReleasesForeignMemoryOnce) {
  std::vector<float> foreign(4);
  int released = 0;
  {
    std::shared_ptr<Storage> storage =
        Storage::Wrap(foreign.data(), 16, DeviceKind::kHost, [&] { ++released; });
    EXPECT_EQ(storage->data(), foreign.data());
    EXPECT_EQ(storage->device(), DeviceKind::kHost);
    EXPECT_EQ(released, 0);
  }
  EXPECT_EQ(released, 1);
  Storage::Wrap(foreign.data(), 16, DeviceKind::kHost, nullptr);  // borrowed: nothing to release
}

}  // namespace
}  // namespace meshfold
