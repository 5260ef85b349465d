#include "comm/wait.h"

#include "core/base/status_macros.h"

namespace meshfold::comm {

absl::Status WaitFor(absl::StatusOr<std::unique_ptr<Work>> work, const Communicator& communicator) {
  MF_RETURN_IF_ERROR(work.status());
  return (*work)->HostWait(communicator.deadline());
}

}  // namespace meshfold::comm
