#include "optim/update_rule.h"

#include "absl/strings/str_cat.h"

namespace meshfold::optim {

Registry<UpdateRuleFactory>& UpdateRuleRegistry() {
  static auto* registry = new Registry<UpdateRuleFactory>("optimizer");
  return *registry;
}

absl::Status CheckFraction(absl::string_view name, double value) {
  if (value >= 0 && value < 1) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(
      absl::StrCat("[Optimizer] ", name, " ", value, " is outside [0, 1)"));
}

}  // namespace meshfold::optim
