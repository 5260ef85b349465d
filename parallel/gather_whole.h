// Whole tensors on rank 0 out of the ranks' parts.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "parallel/axis.h"

namespace meshfold::parallel {

// A tensor that lies as a parameter does: its value, gradient or a moment.
struct LocalPart {
  const Parameter* parameter = nullptr;
  Tensor tensor;  // of the shape of parameter->part, in host memory, any pitch
};

// The whole tensors, contiguous in host memory, in the order of `parts`, on rank 0; empty on the
// others. Of equal copies the first one is sent, in pieces that do not depend on data. Collective
// over the world: all ranks pass the same parameters. Waits at most the world's deadline for each.
absl::StatusOr<std::vector<Tensor>> GatherWhole(absl::Span<const LocalPart> parts,
                                                const Meshes& meshes);

}  // namespace meshfold::parallel
