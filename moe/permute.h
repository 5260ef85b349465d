// Sorting token copies by expert: the step between a router and a dispatcher.
#pragma once

#include <cstdint>
#include <vector>

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

// Drops each expert's rows beyond its first `capacity`, in token order. Nothing happens when all
// fit. Reads nothing on the host: what is kept follows from the counts.
void DropBeyondCapacity(const Tensor& ids_TK, const Tensor& valid_T, int64_t capacity,
                        SortedTokens& sorted);

}  // namespace meshfold::moe
