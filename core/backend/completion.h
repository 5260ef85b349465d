// Things that finish later, and how code waits for them.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace meshfold {

// An ordered queue of device work. The CPU backend runs each kernel at once, so its stream is
// always drained.
class Stream {
 public:
  virtual ~Stream() = default;
  // Blocks the host until all work issued so far is done.
  virtual absl::Status Synchronize() = 0;
};

// Work in flight: a collective, a device-to-host copy, a file read.
class Completion {
 public:
  virtual ~Completion() = default;
  // True once the work is finished; never blocks.
  virtual bool Done() = 0;
  // Blocks the calling thread until done. DeadlineExceeded once `deadline` has passed since this
  // call; the work itself goes on.
  virtual absl::Status HostWait(absl::Duration deadline) = 0;
  // Orders later work of `stream` behind this work without blocking the host; on the CPU, where a
  // stream has no queue, it waits on the host.
  virtual void WaitOn(Stream& stream) = 0;
};

// Lets other micro-batches run while one waits; installed in the ExecContext inside a fiber.
class Yielder {
 public:
  virtual ~Yielder() = default;
  // Switches away exactly once and returns when this fiber is chosen again.
  virtual void Yield() = 0;
};

// Waits until `completion` may be used by later ops of the current context. Inside a fiber it
// yields exactly once, always, so that all ranks of a stage follow one order; then orders the
// context's stream behind it. StatusError when the work failed or missed its deadline.
void Await(Completion& completion);

// As Await, but the result is needed by the host itself (row counts): HostWait after the yield.
void AwaitOnHost(Completion& completion);

}  // namespace meshfold
