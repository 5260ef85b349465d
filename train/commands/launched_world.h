// The world of the processes that a launcher started.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "train/world.h"

namespace meshfold::train {

// Unimplemented, naming `command`, where a launcher started several processes: each would do the
// same and write the same files.
absl::Status RefuseSeveralRanks(const char* command);

// Runs `body` with this process's end of the world that the launcher started, or alone. A rank that
// fails prints its sentence, then ends the world; all ranks return a Status without a message then,
// since there is nothing left to say.
absl::Status RunInLaunchedWorld(const std::function<absl::Status(const World&)>& body);

}  // namespace meshfold::train
