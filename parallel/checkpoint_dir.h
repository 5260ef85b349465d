// The directory of checkpoints: names, what is whole, and the steps by which a new one takes its
// place. Only file names here; what stands inside a checkpoint is parallel/checkpoint's.
//
// <root>/step_XXXXXXXX            whole: it got this name by a rename after all of it was on disk
// <root>/step_XXXXXXXX.incomplete being written or being removed
// <root>/step_XXXXXXXX.replaced   whole: an older save of the same step, while the newer one takes
//                                 its place
// <root>/latest                   name of the newest whole one, one line
//
// One process writes to a root at a time; any number may read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshfold::parallel {

// Name of the index inside a checkpoint's directory; written last, so a directory has it or is not
// whole.
inline constexpr char kCheckpointIndexName[] = "index.json";
// Name of the run's resolved config in there.
inline constexpr char kCheckpointConfigName[] = "config.yaml";

// Path of a step's whole checkpoint, and of one that is being written.
std::string StepPath(const std::string& root, int64_t step);
std::string IncompletePath(const std::string& root, int64_t step);

// Makes `root` durably when it is absent; then tidies up what a writer that was killed left: drops
// what is incomplete, and puts a whole checkpoint that was about to be replaced back in its place.
absl::Status PrepareCheckpointRoot(const std::string& root);

// Gives the finished, durable IncompletePath the name of its step, in place of whatever has it, and
// moves `latest` there. When it fails before the name is given, what was there is there again.
absl::Status PublishCheckpoint(const std::string& root, int64_t step);

// Removes the lowest steps beyond the `keep` (>= 1) that stay; `newest` always stays.
absl::Status PruneCheckpoints(const std::string& root, int64_t keep, int64_t newest);

// See parallel/checkpoint.h.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

}  // namespace meshfold::parallel
