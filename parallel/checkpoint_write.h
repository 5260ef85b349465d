// The steps of writing a checkpoint: a directory, shards in it, then what makes them whole. One
// process does them all (SaveCheckpoint); of many ranks each writes a shard and the first does the
// rest (parallel/shared_save.h). Local: nothing communicates.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_index.h"

namespace meshfold::parallel {

// A part of a global tensor, to be written from where it is.
struct TensorPart {
  std::string name;  // of the global tensor
  Tensor tensor;     // the elements of `box`, in its shape; host memory, any pitch
  Shape shape;       // of the global tensor
  Box box;
};

// "shard-00003.safetensors".
std::string ShardName(int64_t rank);

// Makes the root of checkpoints and an empty directory (IncompletePath) for the one of `step`.
// InvalidArgument for a negative step.
absl::Status StartCheckpoint(const std::string& root, int64_t step);

// Writes `parts` durably into one safetensors file `file` of `directory`, each under its tensor's
// name, and returns what the index says of them. InvalidArgument for a tensor that is given twice,
// is not in host memory or has another shape than its box.
absl::StatusOr<CheckpointTensors> WriteShard(const std::string& directory, const std::string& file,
                                             absl::Span<const TensorPart> parts);

// Writes config and index beside the shards, gives the checkpoint of state.step its name and
// removes surplus ones. When the name could not be given, the partial directory is removed.
absl::Status FinishCheckpoint(const std::string& root, const CheckpointState& state,
                              CheckpointTensors tensors, const SaveOptions& options);

// Removes what StartCheckpoint made, as far as possible: after a failed step.
void AbandonCheckpoint(const std::string& root, int64_t step);

}  // namespace meshfold::parallel
