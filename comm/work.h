// Work: a communication operation in flight.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "comm/stats.h"
#include "core/backend/completion.h"
#include "core/tensor/tensor.h"

namespace meshfold::comm {

// Returned by every operation of a Communicator and owned by the caller, who must wait on it, by
// HostWait or WaitOn, before it reads the outputs, writes the inputs or destroys the Work:
// destroying one that was never waited on is a check failure, except while an exception unwinds.
// The Work keeps the buffers alive until then; a transport that is still busy with them after a
// missed deadline holds its own references. Used by one thread at a time.
class Work : public Completion {
 public:
  ~Work() override;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  // Blocks until the operation is over. DeadlineExceeded, naming the operation, when `deadline`
  // passes first: the operation goes on and may be waited on again. Aborted with the reason when
  // the world was aborted. A second call returns the result of the first that finished.
  absl::Status HostWait(absl::Duration deadline) final;

  // Orders `stream` behind the operation. Here for CPU streams, which have no queue: waits on the
  // host for the communicator's own deadline. StatusError when the operation failed.
  void WaitOn(Stream& stream) override;

  // "all_reduce #12 of group 'dp', rank 3": leads every message.
  const std::string& what() const { return what_; }

 protected:
  using Time = std::chrono::steady_clock::time_point;

  // `deadline` is the communicator's, for WaitOn; `sent_bytes` as comm/stats.h counts them.
  Work(std::string what, absl::Duration deadline, std::vector<Tensor> buffers,
       int64_t sent_bytes = 0);

  // Waits at most `deadline`. The base turns DeadlineExceeded into a message with what().
  virtual absl::Status DoWait(absl::Duration deadline) = 0;

  // When the operation was over, after DoWait has said that it is. Here: now.
  virtual Time EndedAt();

  // For implementations whose WaitOn does not block the host.
  void MarkWaited() { waited_ = true; }

 private:
  friend class Communicator;
  // Counts this operation, issued at `issued`, and later its waits, under `key`.
  void CountIn(std::shared_ptr<TrafficStats> stats, TrafficKey key, Time issued);

  const std::string what_;
  const absl::Duration deadline_;
  std::vector<Tensor> buffers_;
  const int64_t sent_bytes_;
  std::shared_ptr<TrafficStats> stats_;  // null: not counted
  TrafficKey key_;
  Time issued_;
  bool waited_ = false;
  bool finished_ = false;
  absl::Status result_;
};

// An operation that was over before it was returned.
class FinishedWork final : public Work {
 public:
  explicit FinishedWork(std::string what, absl::Status result = absl::OkStatus());
  bool Done() override { return true; }

 private:
  absl::Status DoWait(absl::Duration deadline) override;
  Time EndedAt() override { return ended_; }
  const absl::Status status_;
  const Time ended_ = std::chrono::steady_clock::now();
};

}  // namespace meshfold::comm
