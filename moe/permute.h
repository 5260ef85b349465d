// Sorting token copies by expert: the step between a router and a dispatcher.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "core/autograd/ops.h"
#include "core/backend/backend.h"
#include "core/tensor/tensor.h"

namespace meshfold::moe {

// The token copies of this rank and micro-batch in row order: experts ascending, tokens ascending
// inside an expert. Padding tokens have no rows.
struct SortedTokens {
  RowIndex index;                 // R = rows.total()
  RowCounts rows;                 // rows of each of the E experts, after drops
  std::vector<int64_t> routed_E;  // rows of each expert before drops
  std::vector<int64_t> kept_E;    // ... and after
  Tensor routed, kept;            // the same on the device, i32 [E]
  int64_t num_tokens = 0;         // tokens that are not padding

  int64_t num_dropped() const;
};

// Sorts ids_TK (i32 [T, K], each in [0, num_experts)) and reads the counts: the one host read of an
// MoE layer and micro-batch. valid_T: u8 [T], 0 for padding, or undefined. Local; inside a fiber it
// yields exactly once. StatusError when the read fails.
SortedTokens SortTokens(const Tensor& ids_TK, const Tensor& valid_T, int64_t num_experts);

// Leaves expert e its first limits_E[e] rows, in token order. Nothing happens when all fit. Reads
// nothing on the host: what is kept follows from the counts.
void LimitRows(const Tensor& ids_TK, const Tensor& valid_T, absl::Span<const int64_t> limits_E,
               SortedTokens& sorted);

// Rows for tokens whose slots say by which of rows.num_groups() groups they are wanted: ids_NK i32
// [N, K], negative for none. rows: how many each group gets of them, known from a plan. Groups
// ascending, tokens ascending inside a group. Local; reads nothing on the host.
RowIndex SortByGroup(const Tensor& ids_NK, const RowCounts& rows);

}  // namespace meshfold::moe
