#include "core/nn/layer_stack.h"

#include "core/base/check.h"

namespace meshfold {

Module& LayerStack::Get(const std::string& name) {
  for (Entry& entry : entries_) {
    if (entry.name == name) return *entry.module;
  }
  MF_CHECK(false) << " no layer '" << name << "'";
  return *entries_.front().module;
}

void LayerStack::VisitParameters(ParameterVisitor visit) {
  for (Entry& entry : entries_) entry.module->VisitParameters(visit);
}

void LayerStack::VisitModules(ModuleVisitor visit) {
  visit(*this);
  for (Entry& entry : entries_) entry.module->VisitModules(visit);
}

void LayerStack::OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) {
  for (Entry& entry : entries_) entry.module->OnStepEnd(contexts);
}

Variable LayerStack::Forward(const Variable& x, StepContext& context) {
  Variable activation = x;
  for (Entry& entry : entries_) activation = (*entry.module)(activation, context);
  return activation;
}

}  // namespace meshfold
