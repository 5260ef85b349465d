// One reference-counted block of memory, shared by the tensors that view it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "core/tensor/allocator.h"

namespace meshfold {

class Storage {
 public:
  // A new block; contents unspecified.
  static absl::StatusOr<std::shared_ptr<Storage>> Allocate(int64_t bytes, Allocator& allocator);
  // Foreign memory (NumPy, DLPack, a mapped file); `release` runs when the last tensor lets go.
  static std::shared_ptr<Storage> Wrap(void* data, int64_t bytes, DeviceKind device,
                                       std::function<void()> release);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  DeviceKind device() const { return device_; }

 private:
  Storage() = default;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::kHost;
  Allocator* allocator_ = nullptr;  // owner of the block, or null when `release_` is
  std::function<void()> release_;
};

}  // namespace meshfold
