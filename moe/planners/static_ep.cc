// Plain expert parallelism: each target computes the contiguous block of experts that it owns,
// tokens travel, weights never do. GShard (Lepikhin et al. 2020).
#include "absl/strings/str_cat.h"
#include "moe/expert_plan.h"

namespace meshfold::moe {
namespace {

absl::Status CheckInput(const PlanInput& input) {
  int64_t num_sources = static_cast<int64_t>(input.counts_RE.size());
  if (num_sources == 0) return absl::InvalidArgumentError("[static_ep] no ranks");
  if (input.num_targets < 1 || num_sources % input.num_targets != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[static_ep] ", input.num_targets, " targets do not divide the ", num_sources, " sources"));
  }
  for (const std::vector<int64_t>& counts_E : input.counts_RE) {
    if (counts_E.size() == input.counts_RE[0].size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("[static_ep] one rank counts ", counts_E.size(),
                                                   " experts, rank 0 counts ",
                                                   input.counts_RE[0].size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ExpertPlan> PlanStaticEp(const PlanInput& input) {
  if (absl::Status status = CheckInput(input); !status.ok()) return status;
  int64_t num_sources = static_cast<int64_t>(input.counts_RE.size());
  int64_t num_experts = static_cast<int64_t>(input.counts_RE[0].size());
  ExpertPlan plan;
  plan.groups.resize(static_cast<size_t>(input.num_targets));
  for (int64_t target = 0; target < input.num_targets; ++target) {
    ExpertBlock block = OwnedExperts(num_experts, input.num_targets, target);
    for (int64_t expert = block.begin; expert < block.end; ++expert) {
      plan.home.push_back(target);
      plan.groups[static_cast<size_t>(target)].push_back(expert);
    }
  }
  for (int64_t source = 0; source < num_sources; ++source) {
    for (int64_t expert = 0; expert < num_experts; ++expert) {
      int64_t rows = input.counts_RE[static_cast<size_t>(source)][static_cast<size_t>(expert)];
      if (rows == 0) continue;
      plan.shares.push_back({.source = source,
                             .expert = expert,
                             .target = plan.home[static_cast<size_t>(expert)],
                             .num_rows = rows});
    }
  }
  return plan;
}

MF_REGISTER(PlannerRegistry(), "static_ep", PlanStaticEp);

}  // namespace
}  // namespace meshfold::moe
