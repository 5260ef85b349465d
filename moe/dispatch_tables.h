// The tables behind dispatchers that exchange rows: which copy of a token goes where, as a sender
// lists it. Local arithmetic on the host.
//
// Letters: S sent tokens, M members (ranks) of the expert group.
#pragma once

#include <cstdint>
#include <vector>

#include "core/autograd/ops.h"
#include "core/tensor/tensor.h"
#include "moe/expert_plan.h"
#include "moe/permute.h"

namespace meshfold::moe {

// Where the copy in each slot of ids_TK is computed: the target, and the number of the expert's
// group there. Both -1 in a slot without a row (padding, dropped).
struct SlotTargets {
  int64_t num_tokens = 0, top_k = 0;
  std::vector<int32_t> target_TK, group_TK;  // row-major
};

// The slots of `source`, whose tokens were sorted for the plan. Reads the sorted rows on the host:
// inside a fiber it yields exactly once. StatusError when the read fails.
SlotTargets TargetsOf(const SortedTokens& sorted, const ExpertPlan& plan, int64_t source);

// What a rank sends when a token goes once to every rank that computes any of its experts.
struct SendTable {
  RowIndex index;               // tokens -> sent rows: members ascending, tokens ascending
  std::vector<int64_t> rows_M;  // rows to each member
  Tensor groups_SK;             // i32 [S, K]: each slot's group at the row's member, -1 elsewhere
};

// num_members is a multiple of num_targets: rows go to all members of a target.
SendTable MakeSendTable(const SlotTargets& slots, int64_t num_targets, int64_t num_members);

}  // namespace meshfold::moe
