// Whole tensors on one rank, of parts on all: for what is handed out (gradients of `eval --out`,
// weights for Python) and for tests. Training never does this.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "parallel/sharding_context.h"

namespace meshfold::parallel {

// A tensor that is cut as a parameter's value is: itself, its gradient, a moment.
struct GatherInput {
  std::string name;                      // the same on all ranks that hold a part
  const Parameter* parameter = nullptr;  // its shape, part, layout and stages count
  Tensor tensor;  // of the part's shape; host memory, any pitch and dtype; copies are equal
};

// On rank 0 the whole tensors by name, contiguous in host memory outside of any pool; on other
// ranks nothing. Of equal parts the first copy travels, and none that rank 0 has. Ranks of one
// pipeline stage give the same inputs in any order, those of different stages may give others.
// Collective over the world; waits, one part after the other: the deadline holds for what all of
// rank 0's receiving takes. InvalidArgument, on every rank, names the first rank's tensor that is
// repeated, is not in host memory, or has not the shape of its part or its part not the layout's;
// or that does not tile.
absl::StatusOr<std::map<std::string, Tensor>> GatherWhole(const ShardingContext& sharding,
                                                          absl::Span<const GatherInput> inputs);

}  // namespace meshfold::parallel
