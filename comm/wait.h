// Issuing an operation and waiting for it in one expression.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/work.h"

namespace meshfold::comm {

// Blocks until `work`, just issued on `communicator`, is over, for at most the communicator's
// deadline: WaitFor(world.Barrier(), world). The error of issuing it, or of the wait.
absl::Status WaitFor(absl::StatusOr<std::unique_ptr<Work>> work, const Communicator& communicator);

}  // namespace meshfold::comm
