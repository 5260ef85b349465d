// A model and its optimizer as named tensors of a checkpoint: saving, and strict loading.
//
// "model/<parameter>" holds every parameter and buffer in its own dtype; "optimizer/m/<parameter>",
// "optimizer/master/<parameter>" and so on what Optimizer::VisitState visits; the integer
// "optimizer/num_steps" the optimizer's counter.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/nn/module.h"
#include "optim/optimizer.h"
#include "parallel/checkpoint.h"
#include "parallel/sharding_context.h"

namespace meshfold::parallel {

// Writes a checkpoint of `model`, of `optimizer` (null: weights only) and of `state` (whose
// integers may not start with "optimizer/"); returns its path. Tensors on a device are copied to
// the host first, all at once; those on the host are written from where they are. Errors as of
// SaveCheckpoint. Runs on the current context.
//
// Without `sharding` local: one process writes everything, and parameters that are parts are
// refused. With it collective over its world, as SaveShared: of the ranks that hold the same part
// one writes it, PlanSave says which; parts must be what their layouts say, and all ranks of a
// pipeline stage have the same parameters and state. Also in a world of one rank, where it writes
// the same bytes as without.
absl::StatusOr<std::string> SaveTrainingState(const std::string& root, Module& model,
                                              optim::Optimizer* optimizer,
                                              const CheckpointState& state,
                                              const SaveOptions& options,
                                              const ShardingContext* sharding = nullptr);

// Restores what SaveTrainingState wrote, on whatever layout, into an existing model and optimizer:
// of each tensor the part that its parameter holds, bit for bit where dtypes are equal (weights
// convert between float dtypes). Returns the saved `state`. Local: each rank reads for itself.
// Parameters without a value are allocated; versions are bumped. With `optimizer` null only weights
// are read, as for evaluation: masters of some optimizer must then be made anew (CopyToMasters).
// A checkpoint of weights alone at step 0 (a converted model) starts the optimizer: masters from
// the weights, all else zero.
// InvalidArgument, listing tensors that are missing, unexpected or of another shape, before
// anything is written; errors as of Checkpoint::Read leave model and optimizer partly overwritten.
absl::StatusOr<CheckpointState> LoadTrainingState(const std::string& directory, Module& model,
                                                  optim::Optimizer* optimizer);

}  // namespace meshfold::parallel
