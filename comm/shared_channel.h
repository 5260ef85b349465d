// SharedChannel: the collectives of one group whose ranks share a window of memory.
//
// Operations are taken in the order in which they were started, cut into chunks that are numbered
// through from the first operation to the last, and moved by Advance, which never waits: so
// operations of any number of groups may be in flight in any order. The next operations are copied
// in while earlier ones wait for other ranks, as far as slots are free.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "comm/shared_plan.h"
#include "comm/shared_window.h"
#include "core/tensor/dtype.h"

namespace meshfold::comm {

// One rank's side. See Communicator for what the operations do; `in` and `out` are the same for a
// broadcast and null for a barrier. Memory stays alive until `done`.
struct SharedOperation {
  SharedKind kind = SharedKind::kBarrier;
  std::string what;  // leads messages
  DType dtype = DType::kU8;
  const char* in = nullptr;
  char* out = nullptr;
  int64_t bytes = 0;  // as for SharedPlan
  int root = 0;       // of a broadcast
  // Called once, from Advance or Fail.
  std::function<void(absl::Status)> done;
};

// Used by one thread at a time, but for PlanOf.
class SharedChannel {
 public:
  // The end of rank `rank`; collective in that each rank of the window has one.
  SharedChannel(std::shared_ptr<SharedWindow> window, int rank);

  SharedPlan PlanOf(const SharedOperation& operation) const {
    return SharedPlan(operation.kind, operation.bytes, num_ranks_, window_->shape().slot_bytes);
  }
  void Start(SharedOperation operation);
  // Does what needs no waiting, at most one chunk of each stage; whether that was anything. An
  // operation that ranks disagree about ends with Internal on all of them; later ones go on.
  bool Advance();
  // Whether nothing is in flight.
  bool idle() const { return active_.empty(); }
  // Ends what is in flight, and takes no further part: the channel must not be used again.
  void Fail(const absl::Status& reason);

 private:
  struct Active {
    SharedOperation operation;
    SharedPlan plan;
    int64_t num_chunks;
    absl::Status failure;  // then its chunks move nothing
  };
  // A stage's next chunk: number `chunk` of active_[index], `sequence` of the channel.
  struct Cursor {
    size_t index = 0;
    int64_t chunk = 0, sequence = 0;
  };
  using Counter = std::atomic<int64_t> SharedProgress::*;

  bool CopyIn();
  bool Combine();
  bool Gather();
  void CopyChunkIn(const Active& active, const Cursor& at) const;
  void CombineChunk(const Active& active, const Cursor& at) const;
  void AddChunk(const Active& active, const Cursor& at) const;
  void GatherChunk(const Active& active, const Cursor& at) const;
  absl::Status CheckAgreement(const Active& active, int64_t sequence) const;
  void GiveUp(Active& active, absl::Status failure);
  bool AllReached(Counter counter, int64_t count) const;
  void Publish(Counter counter, int64_t count) const;
  void Step(Cursor& cursor) const;
  void FinishFront();

  const std::shared_ptr<SharedWindow> window_;
  const int rank_, num_ranks_, num_slots_;
  std::deque<Active> active_;
  Cursor copy_in_, combine_, gather_;
};

}  // namespace meshfold::comm
