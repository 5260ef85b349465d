// ExpertPlan: which rank computes which token copies, and which expert weights travel for that.
//
// A plan is plain data and a planner a pure function, so that every rank derives the same plan from
// the same counts without talking, and a plan can be tested without moving a byte. One file in
// moe/planners a planner.
//
// Rows go from sources to targets. Sources are the ranks of the expert group, targets its places
// along the axis "ep", both counted from 0: the same thing without expert tensor parallelism. With
// it, expert_tensor neighbours of the group are one target: each has a slice of the hidden width F
// of all experts there, gets all rows, and computes a summand of their outputs. What a plan says
// about a target holds for every one of its ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/backend/backend.h"
#include "core/base/registry.h"

namespace meshfold::moe {

struct ExpertPlan {
  // [E] target that owns each expert: its weights, its gradient sum, its optimizer state.
  std::vector<int64_t> home;

  // [targets] experts that a target computes, in the order of its row groups: own ones ascending,
  // also those without rows, then travelled ones.
  std::vector<std::vector<int64_t>> groups;

  // `num_rows` rows of `expert` go from `source` to `target`. Several shares of one
  // (source, expert) take its rows in order of tokens, first share first.
  struct Share {
    int64_t source = 0, expert = 0, target = 0, num_rows = 0;
  };
  std::vector<Share> shares;  // by source, then expert; none without rows

  // The weights of `expert` are copied from target `from` to target `to`.
  struct Copy {
    int64_t expert = 0, from = 0, to = 0;
  };
  std::vector<Copy> copies;

  int64_t num_experts() const { return static_cast<int64_t>(home.size()); }
  int64_t num_targets() const { return static_cast<int64_t>(groups.size()); }
};

// What planners decide from. Grows by topology, costs and memory limits with planners that heed
// them.
struct PlanInput {
  // [sources][E] rows of each expert on each source, after drops.
  std::vector<std::vector<int64_t>> counts_RE;
  int64_t num_targets = 1;  // divides the number of sources
};

// Pure and deterministic: the same input gives the same plan on every rank. InvalidArgument when
// the input has no source, ragged counts, or targets that do not divide the sources.
using Planner = absl::StatusOr<ExpertPlan> (*)(const PlanInput& input);
Registry<Planner>& PlannerRegistry();

// OK when `plan` sends every row of `input` to exactly one target that computes its expert, every
// expert is computed at home, and exactly the groups away from home get a copy. Else Internal with
// the first fault. For tests and debug builds.
absl::Status ValidatePlan(const PlanInput& input, const ExpertPlan& plan);

// Rows of each group of `target`, summed over sources.
RowCounts GroupRows(const ExpertPlan& plan, int64_t target);

// Experts [begin, end) that `target` owns when `num_experts` are cut into contiguous blocks:
// ceiling split, the last blocks short or empty.
struct ExpertBlock {
  int64_t begin = 0, end = 0;
};
ExpertBlock OwnedExperts(int64_t num_experts, int64_t num_targets, int64_t target);

}  // namespace meshfold::moe
