// Parameters with values and gradients for tests of optimizers.
#pragma once

#include <string>
#include <utility>

#include "core/backend/backend.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"

namespace meshfold::testing {

// A parameter that holds `value`.
inline Parameter ParameterOf(std::string name, Tensor value, bool decay = true) {
  Parameter parameter = MakeParameter(std::move(name), value.shape(), InitSpec(), decay);
  parameter.dtype = value.dtype();
  parameter.value.SetData(std::move(value));
  return parameter;
}

// Gives `parameter` the gradient of a step of one micro-batch.
inline void SetGradient(const Parameter& parameter, const Tensor& gradient) {
  LeafGrad& grad = parameter.value.grad();
  grad.Reset();
  CurrentBackend().Copy(gradient, grad.Begin(parameter.value.data(), 0).tensor);
  grad.Finish();
}

}  // namespace meshfold::testing
