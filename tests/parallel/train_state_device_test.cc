// Saving and loading tensors that are not in host memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "core/tensor/allocator.h"
#include "parallel/train_state.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/training.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::ExpectEqual;
using testing::Training;

// Host memory that says it is a device's, so that tensors must be copied to be saved.
class DeviceAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    return SystemHostAllocator().Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override { SystemHostAllocator().Free(block, bytes); }
  AllocatorStats stats() const override { return {}; }
  DeviceKind device() const override { return DeviceKind::kCuda; }
};

class TrainStateDeviceTest : public ScratchTest {
 protected:
  // Saves `run` and returns the checkpoint's directory.
  std::string Save(Training& run) {
    return SaveTrainingState(Path("root"), *run.model, run.optimizer.get(), {.step = 3}, {})
        .value();
  }

  testing::ScopedTestContext context_;
};

TEST_F(TrainStateDeviceTest, CopiesTensorsThroughTheHost) {
  static DeviceAllocator device;        // outlives the tensors
  constexpr int64_t kHiddenSize = 256;  // masters have padded rows
  Training run(DType::kBF16, {}, 1, kHiddenSize);
  run.Step(1);
  const auto saved = run.Tensors();
  context_.context().allocator = &device;
  Training on_device(DType::kBF16, {}, 2, kHiddenSize);
  MF_ASSERT_OK(LoadTrainingState(Save(run), *on_device.model, on_device.optimizer.get()));
  ExpectEqual(on_device.Tensors(), saved);
  const std::string path = Save(on_device);
  context_.context().allocator = &SystemHostAllocator();
  Training back(DType::kBF16, {}, 5, kHiddenSize);
  MF_ASSERT_OK(LoadTrainingState(path, *back.model, back.optimizer.get()));
  ExpectEqual(back.Tensors(), saved);
}

}  // namespace
}  // namespace meshfold::parallel
