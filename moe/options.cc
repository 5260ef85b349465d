#include "moe/options.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace meshfold::moe {
namespace {

absl::Status Invalid(std::string message) {
  return absl::InvalidArgumentError(absl::StrCat("[MoeOptions] ", message));
}

absl::Status ValidateSizes(const MoeOptions& options) {
  const std::pair<const char*, int64_t> sizes[] = {{"hidden_size", options.hidden_size},
                                                   {"num_experts", options.num_experts},
                                                   {"top_k", options.top_k},
                                                   {"expert_size", options.expert_size},
                                                   {"num_groups", options.num_groups},
                                                   {"top_k_groups", options.top_k_groups}};
  for (const auto& [name, value] : sizes) {
    if (value <= 0) return Invalid(absl::StrCat(name, " is ", value, "; it must be at least 1"));
  }
  if (options.num_shared_experts < 0) {
    return Invalid(absl::StrCat("num_shared_experts is ", options.num_shared_experts));
  }
  if (options.top_k > options.num_experts) {
    return Invalid(absl::StrCat("top_k ", options.top_k, " is more than the ", options.num_experts,
                                " experts"));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroups(const MoeOptions& options) {
  if (options.num_groups == 1 && options.top_k_groups == 1) return absl::OkStatus();
  if (options.num_experts % options.num_groups != 0) {
    return Invalid(absl::StrCat(options.num_experts, " experts do not divide into ",
                                options.num_groups, " groups"));
  }
  int64_t group_size = options.num_experts / options.num_groups;
  if (group_size < 2) {
    return Invalid(absl::StrCat(options.num_groups, " groups of ", options.num_experts,
                                " experts: a group is scored by its two best, so it needs two"));
  }
  if (options.top_k_groups > options.num_groups) {
    return Invalid(absl::StrCat("top_k_groups ", options.top_k_groups, " is more than the ",
                                options.num_groups, " groups"));
  }
  if (options.top_k > options.top_k_groups * group_size) {
    return Invalid(absl::StrCat("top_k ", options.top_k, " is more than the ",
                                options.top_k_groups * group_size, " experts of ",
                                options.top_k_groups, " groups"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const MoeOptions& options) {
  MF_RETURN_IF_ERROR(ValidateSizes(options));
  MF_RETURN_IF_ERROR(ValidateGroups(options));
  const std::pair<const char*, double> rates[] = {
      {"aux_loss_coefficient", options.aux_loss_coefficient},
      {"z_loss_coefficient", options.z_loss_coefficient},
      {"bias_update_rate", options.bias_update_rate},
      {"capacity_factor", options.capacity_factor},
      {"init_stddev", options.init_stddev}};
  for (const auto& [name, value] : rates) {
    if (!(value >= 0))
      return Invalid(absl::StrCat(name, " is ", value, "; it must not be negative"));
  }
  return absl::OkStatus();
}

}  // namespace meshfold::moe
