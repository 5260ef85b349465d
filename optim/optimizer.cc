#include "optim/optimizer.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::optim {

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const OptimizerOptions& options, absl::Span<Parameter* const> parameters) {
  MF_ASSIGN_OR_RETURN(UpdateRuleFactory factory, UpdateRuleRegistry().Find(options.rule));
  MF_ASSIGN_OR_RETURN(std::unique_ptr<UpdateRule> rule, factory(options.rule_options));
  if (!(options.weight_decay >= 0) || !std::isfinite(options.weight_decay)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Optimizer] weight_decay ", options.weight_decay, " must be 0 or more"));
  }
  std::unique_ptr<Optimizer> optimizer(new Optimizer(options, std::move(rule)));
  std::set<std::string> names;
  try {
    for (Parameter* parameter : parameters) {
      if (!parameter->trained) continue;
      if (!names.insert(parameter->name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("[Optimizer] parameter '", parameter->name, "' is given twice"));
      }
      MF_RETURN_IF_ERROR(optimizer->Add(*parameter));
    }
    optimizer->CopyToMasters();
  } catch (const StatusError& error) {  // the pool is full
    return error.status();
  }
  return optimizer;
}

absl::Status Optimizer::Add(Parameter& parameter) {
  const Tensor& data = parameter.value.data();
  if (!data.defined()) {
    return absl::FailedPreconditionError(
        absl::StrCat("[Optimizer] parameter '", parameter.name, "' has no value yet"));
  }
  const bool is_16_bit = data.dtype() == DType::kBF16 || data.dtype() == DType::kF16;
  if (!is_16_bit && data.dtype() != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat("[Optimizer] parameter '", parameter.name,
                                                   "' is ", DTypeName(data.dtype()),
                                                   "; only f32, bf16 and f16 are trained"));
  }
  if (is_16_bit && !options_.master_weights) {
    return absl::InvalidArgumentError(absl::StrCat("[Optimizer] parameter '", parameter.name,
                                                   "' is ", DTypeName(data.dtype()),
                                                   " and needs optimizer.master_weights: true"));
  }
  // No product reads these: rows need no padded pitch.
  Slot slot;
  for (size_t i = 0; i < rule_->state_names().size(); ++i) {
    slot.state.push_back(Tensor::Contiguous(data.shape()));
    CurrentBackend().Fill(0.0, slot.state.back());
  }
  if (is_16_bit) slot.master = Tensor::Contiguous(data.shape());
  parameters_.push_back(&parameter);
  slots_.push_back(std::move(slot));
  return absl::OkStatus();
}

void Optimizer::Step(double lr, const Tensor& grad_scale) {
  ++num_steps_;
  int64_t num_micro_batches = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Variable& value = parameters_[i]->value;
    if (!value.requires_grad()) continue;
    // Else a gradient of the step before would be used a second time.
    const int64_t contributions = value.grad().contributions();
    if (num_micro_batches == 0) num_micro_batches = contributions;
    MF_CHECK(contributions > 0 && contributions == num_micro_batches)
        << " '" << parameters_[i]->name << "' has gradients of " << contributions
        << " micro-batches in this step, others of " << num_micro_batches;
    rule_->Apply({.param = value.data(),
                  .master = slots_[i].master,
                  .grad = value.grad().tensor(),
                  .state = slots_[i].state,
                  .grad_scale = grad_scale,
                  .lr = lr,
                  .weight_decay = parameters_[i]->decay ? options_.weight_decay : 0.0,
                  .step = num_steps_});
    value.BumpVersion();
  }
  for (Parameter* parameter : parameters_) parameter->value.grad().Reset();
}

void Optimizer::VisitState(absl::FunctionRef<void(const std::string&, const Tensor&)> visit) {
  const std::vector<std::string> names = rule_->state_names();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (size_t s = 0; s < names.size(); ++s) {
      visit(absl::StrCat(names[s], "/", parameters_[i]->name), slots_[i].state[s]);
    }
    if (slots_[i].master.defined()) {
      visit(absl::StrCat("master/", parameters_[i]->name), slots_[i].master);
    }
  }
}

void Optimizer::CopyToMasters() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!slots_[i].master.defined()) continue;
    CurrentBackend().Copy(parameters_[i]->value.data(), slots_[i].master);
  }
}

}  // namespace meshfold::optim
