// Optimizer: the parameters, their state, and one update rule applied to all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "optim/update_rule.h"

namespace meshfold::optim {

struct OptimizerOptions {
  std::string rule = "adamw";  // a name in UpdateRuleRegistry()
  RuleOptions rule_options;
  double weight_decay = 0.0;   // >= 0, for parameters with decay set
  bool master_weights = true;  // 16-bit parameters keep an f32 master; false: f32 only is allowed
};

// Owns state and masters; the parameters stay the model's and must outlive it. Local: gradients are
// complete sums when Step is called. Runs on the current context; not thread-safe.
class Optimizer {
 public:
  // Parameters with `trained` false are left out; the others must have values, of which the masters
  // become copies. State is allocated and zeroed here, so that a checkpoint finds a place for it.
  // NotFound for an unknown rule; InvalidArgument for options out of range, 16-bit parameters
  // without masters, integer parameters and repeated names; FailedPrecondition for a parameter
  // without a value; ResourceExhausted when memory does not suffice.
  static absl::StatusOr<std::unique_ptr<Optimizer>> Create(const OptimizerOptions& options,
                                                           absl::Span<Parameter* const> parameters);

  // Applies the rule to every parameter with its accumulated gradient times grad_scale (f32 [1] or
  // undefined), bumps versions, and resets the gradients for the next step. Every parameter must
  // have had its gradient (as many micro-batches each): idle ones have a zero gradient, so they
  // decay and their moments move on. Frozen ones (requires_grad false) stay as they are.
  void Step(double lr, const Tensor& grad_scale);

  // Updates done so far; a resume sets it.
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t steps) { num_steps_ = steps; }

  const std::vector<Parameter*>& parameters() const { return parameters_; }

  // Calls visit(name, tensor) for every state tensor (all f32), in a fixed order: "m/<parameter>",
  // "v/<parameter>", "master/<parameter>". The tensors may be written.
  void VisitState(absl::FunctionRef<void(const std::string& name, const Tensor& tensor)> visit);

  // Copies parameters into their masters: after weights were loaded without masters.
  void CopyToMasters();

 private:
  struct Slot {
    std::vector<Tensor> state;  // in the rule's state_names() order
    Tensor master;              // undefined for f32 parameters
  };
  Optimizer(const OptimizerOptions& options, std::unique_ptr<UpdateRule> rule)
      : options_(options), rule_(std::move(rule)) {}
  absl::Status Add(Parameter& parameter);

  OptimizerOptions options_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<Parameter*> parameters_;
  std::vector<Slot> slots_;  // beside parameters_
  int64_t num_steps_ = 0;
};

}  // namespace meshfold::optim
