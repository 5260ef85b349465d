// Where a run's checkpoints are, and which one a path that a user gave means.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "train/config.h"

namespace meshfold::train {

// run.dir/checkpoints, or checkpoint.dir where that is set.
std::string CheckpointRoot(const Config& config);

// The checkpoint that `path` means: itself, or the newest of a run or checkpoints directory.
// NotFound, with the path, when there is none.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path);

}  // namespace meshfold::train
