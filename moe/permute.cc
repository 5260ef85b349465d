#include "moe/permute.h"

#include <algorithm>
#include <numeric>

#include "moe/host_copy.h"

namespace meshfold::moe {
namespace {

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// What the kernel writes, before the number of rows is known on the host.
struct SortBuffers {
  Tensor counts_2E;    // i32 [2, E], contiguous, so that one copy fetches kept and routed
  Tensor row_to_slot;  // i32 [T K]
  Tensor token_rows;   // i32 [T, K]
};

SortBuffers Sort(const Tensor& ids_TK, const Tensor& valid_T, int64_t num_experts,
                 absl::Span<const int64_t> limits_E) {
  SortBuffers buffers{.counts_2E = Tensor::Contiguous({2, num_experts}, DType::kI32),
                      .row_to_slot = Tensor::Empty({ids_TK.numel()}, DType::kI32),
                      .token_rows = Tensor::Empty(ids_TK.shape(), DType::kI32)};
  CurrentBackend().SortByExpert({.ids = ids_TK,
                                 .valid = valid_T,
                                 .num_experts = num_experts,
                                 .limits = limits_E,
                                 .counts = buffers.counts_2E.Select(0),
                                 .routed = buffers.counts_2E.Select(1),
                                 .row_to_slot = buffers.row_to_slot,
                                 .token_rows = buffers.token_rows});
  return buffers;
}

// Takes over the tables of a sort that kept `kept_E` rows.
void SetRows(const SortBuffers& buffers, std::vector<int64_t> kept_E, SortedTokens& sorted) {
  sorted.rows.offsets.assign(1, 0);
  for (int64_t count : kept_E) {
    sorted.rows.offsets.push_back(sorted.rows.offsets.back() + count);
  }
  sorted.index = {.row_to_slot = buffers.row_to_slot.Narrow(0, sorted.rows.total()),
                  .token_rows = buffers.token_rows};
  sorted.kept = buffers.counts_2E.Select(0);
  sorted.kept_E = std::move(kept_E);
}

}  // namespace

int64_t SortedTokens::num_dropped() const { return Sum(routed_E) - Sum(kept_E); }

SortedTokens SortTokens(const Tensor& ids_TK, const Tensor& valid_T, int64_t num_experts) {
  SortBuffers buffers = Sort(ids_TK, valid_T, num_experts, /*limits_E=*/{});
  std::vector<int64_t> counts_2E = ReadOnHost(buffers.counts_2E);
  SortedTokens sorted;
  sorted.routed_E.assign(counts_2E.begin() + num_experts, counts_2E.end());
  sorted.routed = buffers.counts_2E.Select(1);
  sorted.num_tokens = Sum(sorted.routed_E) / ids_TK.cols();
  SetRows(buffers, {counts_2E.begin(), counts_2E.begin() + num_experts}, sorted);
  return sorted;
}

void LimitRows(const Tensor& ids_TK, const Tensor& valid_T, absl::Span<const int64_t> limits_E,
               SortedTokens& sorted) {
  std::vector<int64_t> kept_E = sorted.routed_E;
  for (size_t e = 0; e < kept_E.size(); ++e) kept_E[e] = std::min(kept_E[e], limits_E[e]);
  if (kept_E == sorted.kept_E) return;
  int64_t num_experts = static_cast<int64_t>(kept_E.size());
  SetRows(Sort(ids_TK, valid_T, num_experts, limits_E), std::move(kept_E), sorted);
}

RowIndex SortByGroup(const Tensor& ids_NK, const RowCounts& rows) {
  SortBuffers buffers = Sort(ids_NK, Tensor(), rows.num_groups(), /*limits_E=*/{});
  return {.row_to_slot = buffers.row_to_slot.Narrow(0, rows.total()),
          .token_rows = buffers.token_rows};
}

}  // namespace meshfold::moe
