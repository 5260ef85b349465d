// A checkpoint that the ranks of a world write together: each its own shard, the first what makes
// them whole.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_write.h"

namespace meshfold::parallel {

// As SaveCheckpoint, of the `parts` that the ranks give together, each element once: every rank
// writes its own into shard-<rank>.safetensors; `root` is a directory that all ranks see. Rank 0
// makes the directory and, when all shards are on disk, writes the index and gives the checkpoint
// its name. The step is equal on all ranks; what else `state` and `options` say counts on rank 0.
// Collective, waits: a rank that could not make its parts calls it too, with the error. An error of
// any rank ("rank 2: [File] cannot write '...'") is returned on every rank; rank 0 then removes the
// partial directory, and earlier checkpoints stay.
absl::StatusOr<std::string> SaveShared(comm::Communicator& world, const std::string& root,
                                       const CheckpointState& state,
                                       const absl::StatusOr<std::vector<TensorPart>>& parts,
                                       const SaveOptions& options);

}  // namespace meshfold::parallel
