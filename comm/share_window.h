// How the ranks of a group come to see one window.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/shared_window.h"

namespace meshfold::comm {

struct WindowOffer {
  std::shared_ptr<SharedWindow> window;  // null on every rank when one of them could not map it
  std::string refusal;                   // why it is null
};

// Makes a window on rank 0 of `group` and maps it on all; `shape` is the group's, equal everywhere.
// An error is the communicator's only. Collective; blocks for at most a few deadlines of `group`.
absl::StatusOr<WindowOffer> ShareWindow(Communicator& group, const SharedWindowShape& shape);

}  // namespace meshfold::comm
