// The global gradient norm and the clip factor.
#pragma once

#include "absl/types/span.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"

namespace meshfold::parallel {

// Square root of the sum of squares of all accumulated gradients (trained parameters that are not
// frozen, each once). Sums are f64 over runs of 1024 elements of a parameter, added in order, so
// that the value does not depend on pitches, threads or how tensors are cut. Reads from the device
// once. Not finite when some gradient is not. Local for now: gradients are complete sums on this
// rank. Throws StatusError.
double GradNorm(absl::Span<Parameter* const> parameters);

// f32 [1] on the current device: min(1, max_norm / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_; 1 when max_norm is 0 (off). NaN when the norm is NaN, 0 when it
// is infinite: whoever skips broken steps looks at the norm first.
Tensor ClipScale(double norm, double max_norm);

}  // namespace meshfold::parallel
