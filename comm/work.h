// Work: a communication operation in flight.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
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
  // `deadline` is the communicator's, for WaitOn.
  Work(std::string what, absl::Duration deadline, std::vector<Tensor> buffers);

  // Waits at most `deadline`. The base turns DeadlineExceeded into a message with what().
  virtual absl::Status DoWait(absl::Duration deadline) = 0;

  // For implementations whose WaitOn does not block the host.
  void MarkWaited() { waited_ = true; }

 private:
  const std::string what_;
  const absl::Duration deadline_;
  std::vector<Tensor> buffers_;
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
  const absl::Status status_;
};

}  // namespace meshfold::comm
