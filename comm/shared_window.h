// SharedWindow: memory that the ranks of one node all see, and its layout.
//
// The memory is an unnamed file (memfd): it needs no room in /dev/shm, which is small in
// containers, and nothing of it outlives the processes, however they end.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace meshfold::comm {

// Each rank owns `num_slots` slots, which it alone writes, and a progress line.
struct SharedWindowShape {
  int num_ranks = 1;
  int num_slots = 1;
  int64_t slot_bytes = 64;  // a multiple of 64
};

// How far a rank has come, in chunks since the window was made. Written by that rank alone, with
// release; what it stands for is described where it is used.
struct alignas(64) SharedProgress {
  std::atomic<int64_t> copied_in, combined, released;
};

// What a rank says about the operation that begins in a slot.
struct alignas(64) SharedHeader {
  int32_t kind, dtype, root;
  int64_t bytes;
};

// Thread-safe as far as its users keep to the owners above.
class SharedWindow {
 public:
  // Where the other ranks find the window: while its creator has not called CloseAddress.
  struct Address {
    int64_t process = 0, file = 0, nonce = 0;
  };

  // Memory is set aside now, so that a full machine is an error here and not a signal later; more
  // than a sixteenth of what the machine has is refused.
  // ResourceExhausted or Unavailable with the system's reason.
  static absl::StatusOr<std::shared_ptr<SharedWindow>> Create(const SharedWindowShape& shape);
  // In another process of the creator's user and node. Unavailable where that is forbidden, or the
  // address means something else here (another machine, another process namespace).
  static absl::StatusOr<std::shared_ptr<SharedWindow>> Open(const SharedWindowShape& shape,
                                                            const Address& address);
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  // Of the creator.
  Address address() const;
  void CloseAddress();

  const SharedWindowShape& shape() const { return shape_; }
  SharedProgress& progress(int rank) const;
  // Of the slot that holds chunk `sequence`.
  SharedHeader& header(int rank, int64_t sequence) const;
  char* slot(int rank, int64_t sequence) const;

 private:
  explicit SharedWindow(const SharedWindowShape& shape);
  absl::Status Map(int file);
  int64_t SlotIndex(int rank, int64_t sequence) const;

  const SharedWindowShape shape_;
  const int64_t headers_at_, slots_at_, bytes_;
  char* memory_ = nullptr;
  int file_ = -1;
};

}  // namespace meshfold::comm
