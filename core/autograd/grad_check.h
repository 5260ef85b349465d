// Gradient check by finite differences: the first test of a new op.
//
//   EXPECT_TRUE(CheckGradients([](absl::Span<const Variable> in) { return MyOp(in[0], in[1]); },
//                              {x, w}).ok());
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace meshfold {

struct GradCheckOptions {
  // Inputs move by this much times their root mean square. An f32 op is exact to about 1e-7 of its
  // values and smooth to about step^2: 1e-2 balances the two errors near 1e-4.
  double step = 1e-2;
  // Largest |analytic - numeric| of a directional derivative, relative to the gradient's length
  // (times the direction's length over sqrt(n), its size along a typical direction). Ops with
  // kinks (clamp, top-k) need inputs that stay a step away from them.
  double tolerance = 2e-3;
  int num_directions = 4;  // random directions an input
  uint64_t seed = 1;
};

// Compares the gradients of `op`, which backward computes, with central differences of its values.
// `op` maps one leaf for each tensor of `inputs` (f32, on the host) to a Variable; it is called
// 2 x num_directions times an input, must be a pure function and smooth around the inputs. The
// output is weighed with fixed random numbers and summed in f64. OK, or InvalidArgument naming the
// input, the index of its worst element and both values there; Unimplemented when nothing was
// recorded. Runs in the current context; tensors of `inputs` are not written.
absl::Status CheckGradients(absl::FunctionRef<Variable(absl::Span<const Variable>)> op,
                            absl::Span<const Tensor> inputs, const GradCheckOptions& options = {});

}  // namespace meshfold
