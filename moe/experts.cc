#include "moe/experts.h"

#include "absl/strings/str_cat.h"
#include "core/autograd/ops.h"
#include "core/base/check.h"

namespace meshfold::moe {

RoutedExperts::RoutedExperts(const std::string& name, const MoeOptions& options)
    : gate_up_(MakeParameter(name + ".experts.gate_up",
                             {options.num_experts, 2, options.expert_size, options.hidden_size},
                             {InitSpec::Kind::kNormal, options.init_stddev})),
      down_(MakeParameter(name + ".experts.down",
                          {options.num_experts, options.hidden_size, options.expert_size},
                          {InitSpec::Kind::kNormal, options.init_stddev})) {}

void RoutedExperts::VisitParameters(ParameterVisitor visit) {
  visit(gate_up_);
  visit(down_);
}

Variable RoutedExperts::Compute(const DispatchedRows& dispatched) {
  int64_t num_groups = dispatched.rows.num_groups();
  if (num_groups != gate_up_.value.shape()[0]) {
    ThrowInvalidArgument(absl::StrCat("[Experts] ", num_groups, " groups of rows for the ",
                                      gate_up_.value.shape()[0], " experts of ", gate_up_.name));
  }
  return Experts(dispatched.x_RD, dispatched.rows, gate_up_.value, down_.value,
                 dispatched.weights_R);
}

}  // namespace meshfold::moe
