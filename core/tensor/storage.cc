#include "core/tensor/storage.h"

#include <utility>

#include "core/base/status_macros.h"

namespace meshfold {

absl::StatusOr<std::shared_ptr<Storage>> Storage::Allocate(int64_t bytes, Allocator& allocator) {
  MF_ASSIGN_OR_RETURN(void* data, allocator.Allocate(bytes));
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->device_ = allocator.device();
  storage->allocator_ = &allocator;
  return storage;
}

std::shared_ptr<Storage> Storage::Wrap(void* data, int64_t bytes, DeviceKind device,
                                       std::function<void()> release) {
  std::shared_ptr<Storage> storage(new Storage);
  storage->data_ = data;
  storage->bytes_ = bytes;
  storage->device_ = device;
  storage->release_ = std::move(release);
  return storage;
}

Storage::~Storage() {
  if (allocator_ != nullptr) {
    allocator_->Free(data_, bytes_);
  } else if (release_) {
    release_();
  }
}

}  // namespace meshfold
