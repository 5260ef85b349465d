#include "parallel/stage.h"

#include <utility>

#include "core/autograd/engine.h"
#include "core/base/check.h"

namespace meshfold::parallel {

absl::Status CatchStatus(absl::FunctionRef<void()> body) {
  try {
    body();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

Stage::Stage(LayerStack& layers) : layers_(layers) {
  layers.VisitParameters([this](Parameter& parameter) {
    if (parameter.trained) leaves_.push_back(parameter.value);
  });
}

void Stage::BeginStep(int64_t num_micro_batches) {
  MF_CHECK_GE(num_micro_batches, 1);
  roots_.assign(static_cast<size_t>(num_micro_batches), Variable());
  losses_.assign(static_cast<size_t>(num_micro_batches), Tensor());
  for (const Variable& leaf : leaves_) leaf.grad().Reset();
}

absl::Status Stage::Forward(int64_t m, StepContext& context) {
  const size_t index = Index(m);
  return CatchStatus([&] {
    Variable loss = layers_(Variable(), context);
    if (!loss.defined()) ThrowInvalidArgument("[Stage] the batch has no targets, so no loss");
    losses_[index] = loss.data();
    roots_[index] = std::move(loss);
  });
}

absl::Status Stage::Backward(int64_t m) {
  Variable root = std::exchange(roots_[Index(m)], Variable());
  MF_CHECK(root.defined()) << " micro-batch " << m << " has no graph: no Forward, or sent back";
  return CatchStatus([&] {
    BackwardOptions options;
    options.micro_batch = m;
    options.num_micro_batches = static_cast<int64_t>(roots_.size());
    options.leaves = leaves_;
    meshfold::Backward(root, options);
  });
}

size_t Stage::Index(int64_t m) const {
  MF_CHECK(m >= 0 && m < static_cast<int64_t>(losses_.size()))
      << " micro-batch " << m << " of " << losses_.size();
  return static_cast<size_t>(m);
}

}  // namespace meshfold::parallel
