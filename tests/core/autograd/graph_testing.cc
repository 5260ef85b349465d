#include "tests/core/autograd/graph_testing.h"

#include "core/backend/backend.h"
#include "core/base/check.h"

namespace meshfold::testing {

Variable Traced(const Variable& x, const std::string& label, std::vector<std::string>* log) {
  return Record("Traced", {x.data()}, {x}, Saved(), [=](BackwardCall& call) {
    log->push_back(label);
    call.Set(0, call.grad_out());
  })[0];
}

void TraceOnGrad(const Variable& leaf, const std::string& label, std::vector<std::string>* log) {
  leaf.set_on_grad([=] { log->push_back(label); });
}

Variable AddThroughTarget(const Variable& x, const Variable& w, TargetView* view) {
  Tensor y = Tensor::Empty(x.shape());
  CurrentBackend().Add(x.data(), w.data(), y);
  return Record("AddThroughTarget", {y}, {x, w}, Saved(), [=](BackwardCall& call) {
    ++view->calls;
    if (call.needs(0)) call.Set(0, call.grad_out());
    if (!call.needs(1)) return;
    view->writes_leaf = call.writes_leaf(1);
    LeafGrad::Target target = call.Target(1, call.grad_out().shape());
    view->accumulate = target.accumulate;
    view->memory = target.tensor.raw();
    if (target.accumulate) {
      CurrentBackend().Add(target.tensor, call.grad_out(), target.tensor);
    } else {
      CurrentBackend().Copy(call.grad_out(), target.tensor);
    }
  })[0];
}

Variable Swallow(const Variable& x) {
  return Record("Swallow", {x.data()}, {x}, Saved(), [](BackwardCall&) {})[0];
}

Variable Failing(const Variable& x) {
  return Record("Failing", {x.data()}, {x}, Saved(), [](BackwardCall&) {
    throw StatusError(absl::UnavailableError("[Failing] the peer is gone"));
  })[0];
}

PendingWeights BackwardFrom(const Variable& y, const Tensor& dy, const BackwardOptions& options) {
  return Backward({Root{y, dy}}, options);
}

Tensor Row(const std::vector<float>& values) {
  return TensorFromVector(values, {static_cast<int64_t>(values.size())});
}

std::vector<float> GradOf(const Variable& leaf) { return ToVector<float>(leaf.grad().tensor()); }

}  // namespace meshfold::testing
