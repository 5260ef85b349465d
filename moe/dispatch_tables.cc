#include "moe/dispatch_tables.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/check.h"
#include "moe/host_copy.h"

namespace meshfold::moe {
namespace {

// Number of `expert` among the groups of a target.
int32_t GroupOf(const std::vector<int64_t>& groups, int64_t expert) {
  const auto found = std::find(groups.begin(), groups.end(), expert);
  MF_CHECK(found != groups.end()) << " expert " << expert << " is not computed where its rows go";
  return static_cast<int32_t>(found - groups.begin());
}

// Calls body(token, targets) with the distinct targets of each token, ascending.
template <typename F>
void ForEachToken(const SlotTargets& slots, F&& body) {
  std::vector<int32_t> targets;
  for (int64_t token = 0; token < slots.num_tokens; ++token) {
    const auto begin = slots.target_TK.begin() + token * slots.top_k;
    targets.assign(begin, begin + slots.top_k);
    std::sort(targets.begin(), targets.end());
    targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
    if (targets.front() < 0) targets.erase(targets.begin());
    body(token, targets);
  }
}

std::vector<int64_t> RowsToMembers(const SlotTargets& slots, int64_t num_targets,
                                   int64_t num_members) {
  std::vector<int64_t> rows_to_target(static_cast<size_t>(num_targets), 0), rows_M;
  ForEachToken(slots, [&](int64_t, const std::vector<int32_t>& targets) {
    for (int32_t target : targets) ++rows_to_target[static_cast<size_t>(target)];
  });
  for (int64_t rows : rows_to_target) {
    rows_M.insert(rows_M.end(), static_cast<size_t>(num_members / num_targets), rows);
  }
  return rows_M;
}

}  // namespace

SlotTargets TargetsOf(const SortedTokens& sorted, const ExpertPlan& plan, int64_t source) {
  const std::vector<int64_t> row_to_slot = ReadOnHost(sorted.index.row_to_slot);
  SlotTargets slots{.num_tokens = sorted.index.token_rows.rows(),
                    .top_k = sorted.index.token_rows.cols()};
  const size_t num_slots = static_cast<size_t>(slots.num_tokens * slots.top_k);
  slots.target_TK.assign(num_slots, -1);
  slots.group_TK.assign(num_slots, -1);
  std::vector<int64_t> next_E(sorted.rows.offsets.begin(), sorted.rows.offsets.end() - 1);
  int64_t num_rows = 0;
  for (const ExpertPlan::Share& share : plan.shares) {
    if (share.source != source) continue;
    const int32_t group = GroupOf(plan.groups[static_cast<size_t>(share.target)], share.expert);
    int64_t& next = next_E[static_cast<size_t>(share.expert)];
    MF_CHECK_LE(next + share.num_rows, sorted.rows.offsets[static_cast<size_t>(share.expert) + 1])
        << " rows of expert " << share.expert << " in the plan and here";
    for (const int64_t end = next + share.num_rows; next < end; ++next) {
      const size_t slot = static_cast<size_t>(row_to_slot[static_cast<size_t>(next)]);
      slots.target_TK[slot] = static_cast<int32_t>(share.target);
      slots.group_TK[slot] = group;
    }
    num_rows += share.num_rows;
  }
  MF_CHECK_EQ(num_rows, sorted.rows.total()) << " rows in the plan and here";
  return slots;
}

SendTable MakeSendTable(const SlotTargets& slots, int64_t num_targets, int64_t num_members) {
  const int64_t each = num_members / num_targets, top_k = slots.top_k;
  const int64_t width = std::min(top_k, num_targets) * each;
  SendTable table;
  table.rows_M = RowsToMembers(slots, num_targets, num_members);
  std::vector<int64_t> next_M(table.rows_M.size(), 0);
  std::partial_sum(table.rows_M.begin(), table.rows_M.end() - 1, next_M.begin() + 1);
  const int64_t num_rows = next_M.back() + table.rows_M.back();
  std::vector<int32_t> row_to_slot(static_cast<size_t>(num_rows));
  std::vector<int32_t> token_rows(static_cast<size_t>(slots.num_tokens * width), -1);
  std::vector<int32_t> groups_SK(static_cast<size_t>(num_rows * top_k), -1);
  ForEachToken(slots, [&](int64_t token, const std::vector<int32_t>& targets) {
    int64_t entry = token * width;
    for (size_t copy = 0; copy < targets.size() * static_cast<size_t>(each); ++copy, ++entry) {
      const int32_t target = targets[copy / static_cast<size_t>(each)];
      const int64_t member = target * each + static_cast<int64_t>(copy) % each;
      const int64_t row = next_M[static_cast<size_t>(member)]++;
      row_to_slot[static_cast<size_t>(row)] = static_cast<int32_t>(entry);
      token_rows[static_cast<size_t>(entry)] = static_cast<int32_t>(row);
      for (int64_t k = 0; k < top_k; ++k) {
        const size_t slot = static_cast<size_t>(token * top_k + k);
        if (slots.target_TK[slot] != target) continue;
        groups_SK[static_cast<size_t>(row * top_k + k)] = slots.group_TK[slot];
      }
    }
  });
  table.index = {.row_to_slot = Upload(row_to_slot, {num_rows}),
                 .token_rows = Upload(token_rows, {slots.num_tokens, width})};
  table.groups_SK = Upload(groups_SK, {num_rows, top_k});
  return table;
}

}  // namespace meshfold::moe
