// Stage: forward and backward of the local layers for one micro-batch; where exceptions of the
// graph become Status.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/autograd/variable.h"
#include "core/nn/layer_stack.h"
#include "core/nn/step_context.h"
#include "core/tensor/tensor.h"

namespace meshfold::parallel {

// One rank's part of the model (all of it, without a pipeline). Runs in the current context; not
// thread-safe. After a failure the step's gradients are worthless: BeginStep starts anew.
class Stage {
 public:
  // `layers` must outlive the stage; its parameters must be there already.
  explicit Stage(LayerStack& layers);

  // Starts a step of `num_micro_batches` (>= 1); gradients begin anew, and graphs and losses of the
  // step before are let go.
  void BeginStep(int64_t num_micro_batches);

  // Runs micro-batch `m`'s layers, m in [0, num_micro_batches). The loss (f32 [1]) is kept, and in
  // GradMode::kRecord the graph, for Backward, until which `context` must live. The Status of a
  // StatusError thrown in a layer; InvalidArgument when the batch has no targets.
  absl::Status Forward(int64_t m, StepContext& context);

  // Sends the loss of micro-batch `m` back, adds to the gradients and releases the graph;
  // micro-batches in ascending order, each once, after their Forward.
  absl::Status Backward(int64_t m);

  // Value of micro-batch m's loss, f32 [1] on the device; undefined before its Forward.
  const Tensor& loss(int64_t m) const { return losses_[Index(m)]; }

 private:
  // `m` checked against the number of micro-batches.
  size_t Index(int64_t m) const;

  LayerStack& layers_;
  std::vector<Variable> leaves_;  // of all trained parameters
  std::vector<Variable> roots_;   // by micro-batch, released by Backward
  std::vector<Tensor> losses_;    // by micro-batch
};

// Runs `body` and turns a StatusError into its Status.
absl::Status CatchStatus(absl::FunctionRef<void()> body);

}  // namespace meshfold::parallel
