// The global gradient norm and the clip factor.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "comm/communicator.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "parallel/rank_layout.h"

namespace meshfold::parallel {

// Square root of the sum of squares of all accumulated gradients (trained parameters that are not
// frozen, each once). Sums are f64 over runs of 1024 elements of a parameter, added in order, so
// that the value does not depend on pitches, threads or how tensors are cut. Reads from the device
// once. Not finite when some gradient is not. Local: gradients are whole on this rank. Throws
// StatusError.
double GradNorm(absl::Span<Parameter* const> parameters);

// Parameters by whose squares a rank adds to the norm over all ranks.
struct NormParts {
  std::vector<Parameter*> whole;   // held by every rank: each adds them up by itself
  std::vector<Parameter*> shards;  // of which this rank has a part, and its first copy
  bool is_sharded = false;         // some parameter is cut: the same on every rank
};
NormParts PartsForNorm(absl::Span<Parameter* const> parameters, const RankLayout& ranks,
                       int64_t rank);

// The same norm where parameters are cut over `world`: every part counts once, sums of ranks are
// added in their order. The same on every rank. Collective when parts.is_sharded. Throws
// StatusError.
double GradNorm(const NormParts& parts, comm::Communicator& world);

// f32 [1] on the current device: min(1, max_norm / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_; 1 when max_norm is 0 (off). NaN when the norm is NaN, 0 when it
// is infinite: whoever skips broken steps looks at the norm first.
Tensor ClipScale(double norm, double max_norm);

}  // namespace meshfold::parallel
