// Small ops that watch the engine at work.
#pragma once

#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "core/autograd/variable.h"

namespace meshfold::testing {

// Identity on x whose backward appends `label` to `log`.
Variable Traced(const Variable& x, const std::string& label, std::vector<std::string>* log);

// Makes `leaf` append `label` to `log` when its gradient is ready.
void TraceOnGrad(const Variable& leaf, const std::string& label, std::vector<std::string>* log);

// What a backward function saw of one of its inputs.
struct TargetView {
  int calls = 0;
  bool writes_leaf = false;
  bool accumulate = false;
  const void* memory = nullptr;
};

// y = x + w, elementwise; writes w's gradient through Target, so that a leaf may take it directly.
Variable AddThroughTarget(const Variable& x, const Variable& w, TargetView* view);

// Identity on x that gives no gradient back although asked for one.
Variable Swallow(const Variable& x);

// Identity on x whose backward throws StatusError(Unavailable).
Variable Failing(const Variable& x);

// Backward from `y` with gradient `dy`.
PendingWeights BackwardFrom(const Variable& y, const Tensor& dy,
                            const BackwardOptions& options = {});

// f32 [n] tensors.
Tensor Row(const std::vector<float>& values);
// The accumulated gradient of a leaf as a vector.
std::vector<float> GradOf(const Variable& leaf);

}  // namespace meshfold::testing
