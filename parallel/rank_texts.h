// Errors and texts between ranks: what a step that may fail on one of them ends with, so that all
// go on or all stop.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "comm/communicator.h"

namespace meshfold::parallel {

// OK when every rank gives OK; else, on every rank, the error of the first rank that gives one, led
// by "rank N: " where there are several ranks, its message cut at 4 KiB. Also a barrier: what the
// ranks did before is done. Collective; waits. An error of the transport is returned as it is and
// may be on some ranks only.
absl::Status AgreeOnStatus(comm::Communicator& group, const absl::Status& status);

// Every rank's `text`, by rank, on rank 0; empty on the others. Any lengths. Collective; waits.
absl::StatusOr<std::vector<std::string>> GatherTexts(comm::Communicator& group,
                                                     absl::string_view text);

}  // namespace meshfold::parallel
