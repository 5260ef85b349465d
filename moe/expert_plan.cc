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

bool Computes(const ExpertPlan& plan, int64_t rank, int64_t expert) {
  const std::vector<int64_t>& group = plan.groups[static_cast<size_t>(rank)];
  return std::find(group.begin(), group.end(), expert) != group.end();
}

absl::Status ValidateGroups(const ExpertPlan& plan) {
  std::set<std::pair<int64_t, int64_t>> away;  // (expert, rank) computed elsewhere than at home
  for (int64_t rank = 0; rank < plan.num_ranks(); ++rank) {
    std::set<int64_t> seen;
    for (int64_t expert : plan.groups[static_cast<size_t>(rank)]) {
      if (expert < 0 || expert >= plan.num_experts() || !seen.insert(expert).second) {
        return Fault("rank ", rank, " lists expert ", expert, " twice or out of range");
      }
      if (plan.home[static_cast<size_t>(expert)] != rank) away.insert({expert, rank});
    }
  }
  for (int64_t expert = 0; expert < plan.num_experts(); ++expert) {
    int64_t home = plan.home[static_cast<size_t>(expert)];
    if (home < 0 || home >= plan.num_ranks() || !Computes(plan, home, expert)) {
      return Fault("expert ", expert, " is not computed at its home ", home);
    }
  }
  for (const ExpertPlan::Copy& copy : plan.copies) {
    if (away.erase({copy.expert, copy.to}) == 0) {
      return Fault("expert ", copy.expert, " travels to rank ", copy.to, " without need");
    }
  }
  if (away.empty()) return absl::OkStatus();
  return Fault("rank ", away.begin()->second, " computes expert ", away.begin()->first,
               " without its weights");
}

absl::Status ValidateShares(const PlanInput& input, const ExpertPlan& plan) {
  std::vector<std::vector<int64_t>> open_RE = input.counts_RE;
  for (const ExpertPlan::Share& share : plan.shares) {
    if (share.num_rows <= 0) return Fault("a share of expert ", share.expert, " has no rows");
    if (share.target < 0 || share.target >= plan.num_ranks() ||
        !Computes(plan, share.target, share.expert)) {
      return Fault("rows of expert ", share.expert, " go to rank ", share.target,
                   ", which does not compute it");
    }
    open_RE[static_cast<size_t>(share.source)][static_cast<size_t>(share.expert)] -= share.num_rows;
  }
  for (size_t source = 0; source < open_RE.size(); ++source) {
    for (size_t expert = 0; expert < open_RE[source].size(); ++expert) {
      if (open_RE[source][expert] == 0) continue;
      return Fault("of the rows of expert ", expert, " on rank ", source, ", ",
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
  size_t num_ranks = input.counts_RE.size();
  if (plan.groups.size() != num_ranks || plan.home.size() != input.counts_RE[0].size()) {
    return Fault("made for ", plan.num_ranks(), " ranks and ", plan.num_experts(),
                 " experts, the input has ", num_ranks, " and ", input.counts_RE[0].size());
  }
  MF_RETURN_IF_ERROR(ValidateGroups(plan));
  return ValidateShares(input, plan);
}

RowCounts GroupRows(const ExpertPlan& plan, int64_t rank) {
  const std::vector<int64_t>& group = plan.groups[static_cast<size_t>(rank)];
  std::vector<int64_t> rows_E(plan.home.size(), 0);
  for (const ExpertPlan::Share& share : plan.shares) {
    if (share.target == rank) rows_E[static_cast<size_t>(share.expert)] += share.num_rows;
  }
  RowCounts rows;
  for (int64_t expert : group) {
    rows.offsets.push_back(rows.offsets.back() + rows_E[static_cast<size_t>(expert)]);
  }
  return rows;
}

ExpertBlock OwnedExperts(int64_t num_experts, int64_t num_ranks, int64_t rank) {
  MF_CHECK(num_ranks > 0 && rank >= 0 && rank < num_ranks)
      << " rank " << rank << " of " << num_ranks;
  int64_t size = (num_experts + num_ranks - 1) / num_ranks;
  int64_t begin = std::min(rank * size, num_experts);
  return {begin, std::min(begin + size, num_experts)};
}

}  // namespace meshfold::moe
