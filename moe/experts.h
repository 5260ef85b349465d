// The routed experts that this rank holds, as two parameters.
#pragma once

#include <cstdint>
#include <string>

#include "core/nn/module.h"
#include "moe/dispatcher.h"
#include "moe/options.h"

namespace meshfold::moe {

// SwiGLU experts. Parameters <name>.experts.gate_up [E, 2, F, D] (gate first) and
// <name>.experts.down [E, D, F], normal initial values, with weight decay. An expert axis leaves
// this rank the [e, ...] slice of its own experts.
class RoutedExperts {
 public:
  RoutedExperts(const std::string& name, const MoeOptions& options);

  // y_RD: each row through its group's expert, times its weight. The groups must be this rank's own
  // experts in order. Experts without rows get zero gradients, not none. Local; StatusError
  // (InvalidArgument) when groups and parameters differ in number.
  Variable Compute(const DispatchedRows& dispatched);

  void VisitParameters(ParameterVisitor visit);
  Parameter& gate_up() { return gate_up_; }
  Parameter& down() { return down_; }

 private:
  Parameter gate_up_, down_;
};

}  // namespace meshfold::moe
