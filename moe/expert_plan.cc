#include "moe/expert_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::moe {
namespace {

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InternalError(absl::StrCat("[ExpertPlan] ", parts...));
}

bool Computes(const ExpertPlan& plan, int64_t target, int64_t expert) {
  const std::vector<int64_t>& group = plan.groups[static_cast<size_t>(target)];
  return std::find(group.begin(), group.end(), expert) != group.end();
}

absl::Status ValidateGroups(const ExpertPlan& plan) {
  std::set<std::pair<int64_t, int64_t>> away;  // (expert, target) computed elsewhere than at home
  for (int64_t target = 0; target < plan.num_targets(); ++target) {
    std::set<int64_t> seen;
    for (int64_t expert : plan.groups[static_cast<size_t>(target)]) {
      if (expert < 0 || expert >= plan.num_experts() || !seen.insert(expert).second) {
        return Fault("target ", target, " lists expert ", expert, " twice or out of range");
      }
      if (plan.home[static_cast<size_t>(expert)] != target) away.insert({expert, target});
    }
  }
  for (int64_t expert = 0; expert < plan.num_experts(); ++expert) {
    int64_t home = plan.home[static_cast<size_t>(expert)];
    if (home < 0 || home >= plan.num_targets() || !Computes(plan, home, expert)) {
      return Fault("expert ", expert, " is not computed at its home ", home);
    }
  }
  for (const ExpertPlan::Copy& copy : plan.copies) {
    if (away.erase({copy.expert, copy.to}) == 0) {
      return Fault("expert ", copy.expert, " travels to target ", copy.to, " without need");
    }
  }
  if (away.empty()) return absl::OkStatus();
  return Fault("target ", away.begin()->second, " computes expert ", away.begin()->first,
               " without its weights");
}

absl::Status ValidateShares(const PlanInput& input, const ExpertPlan& plan) {
  std::vector<std::vector<int64_t>> open_RE = input.counts_RE;
  for (const ExpertPlan::Share& share : plan.shares) {
    if (share.num_rows <= 0) return Fault("a share of expert ", share.expert, " has no rows");
    if (share.source < 0 || share.source >= static_cast<int64_t>(open_RE.size())) {
      return Fault("rows of expert ", share.expert, " come from source ", share.source);
    }
    if (share.target < 0 || share.target >= plan.num_targets() ||
        !Computes(plan, share.target, share.expert)) {
      return Fault("rows of expert ", share.expert, " go to target ", share.target,
                   ", which does not compute it");
    }
    open_RE[static_cast<size_t>(share.source)][static_cast<size_t>(share.expert)] -= share.num_rows;
  }
  for (size_t source = 0; source < open_RE.size(); ++source) {
    for (size_t expert = 0; expert < open_RE[source].size(); ++expert) {
      if (open_RE[source][expert] == 0) continue;
      return Fault("of the rows of expert ", expert, " on source ", source, ", ",
                   open_RE[source][expert], " are left over");
    }
  }
  return absl::OkStatus();
}

}  // namespace

Registry<Planner>& PlannerRegistry() {
  static auto* registry = new Registry<Planner>("planner");
  return *registry;
}

absl::Status ValidatePlan(const PlanInput& input, const ExpertPlan& plan) {
  if (plan.num_targets() != input.num_targets || plan.home.size() != input.counts_RE[0].size()) {
    return Fault("made for ", plan.num_targets(), " targets and ", plan.num_experts(),
                 " experts, the input has ", input.num_targets, " and ", input.counts_RE[0].size());
  }
  MF_RETURN_IF_ERROR(ValidateGroups(plan));
  return ValidateShares(input, plan);
}

RowCounts GroupRows(const ExpertPlan& plan, int64_t target) {
  const std::vector<int64_t>& group = plan.groups[static_cast<size_t>(target)];
  std::vector<int64_t> rows_E(plan.home.size(), 0);
  for (const ExpertPlan::Share& share : plan.shares) {
    if (share.target == target) rows_E[static_cast<size_t>(share.expert)] += share.num_rows;
  }
  RowCounts rows;
  for (int64_t expert : group) {
    rows.offsets.push_back(rows.offsets.back() + rows_E[static_cast<size_t>(expert)]);
  }
  return rows;
}

ExpertBlock OwnedExperts(int64_t num_experts, int64_t num_targets, int64_t target) {
  MF_CHECK(num_targets > 0 && target >= 0 && target < num_targets)
      << " target " << target << " of " << num_targets;
  int64_t size = (num_experts + num_targets - 1) / num_targets;
  int64_t begin = std::min(target * size, num_experts);
  return {begin, std::min(begin + size, num_experts)};
}

}  // namespace meshfold::moe
