// The global gradient norm and the clip factor.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
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

// The parameters whose squares `rank` adds up for the norm over all ranks: of the ranks of a
// pipeline stage that hold the same part of a trained parameter exactly one does, so that every part
// counts once and no rank has much more to do than the others. Equal arguments but for `rank` on all
// of them. Errors as of LocalBox.
absl::StatusOr<std::vector<Parameter*>> PartsForNorm(absl::Span<Parameter* const> parameters,
                                                     const RankLayout& ranks, int64_t rank);

// The norm over all ranks of `world`, each with its own parts; the ranks' sums are added in their
// order, so the value is the same on every rank. Collective. Throws StatusError.
double GradNorm(absl::Span<Parameter* const> own_parts, comm::Communicator& world);

// f32 [1] on the current device: min(1, max_norm / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_; 1 when max_norm is 0 (off). NaN when the norm is NaN, 0 when it
// is infinite: whoever skips broken steps looks at the norm first.
Tensor ClipScale(double norm, double max_norm);

}  // namespace meshfold::parallel
