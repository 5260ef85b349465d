// The order of token copies by expert: a counting sort in two passes over the ids.
#include <algorithm>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

// Calls body(expert, token, slot) for every routed pair in token order.
template <typename F>
void ForEachRouted(const SortByExpertArgs& args, F&& body) {
  const cpu::ValidRows is_valid(args.valid);
  const cpu::Rows<int32_t> id_rows(args.ids);
  const int64_t top_k = args.ids.cols(), tokens = args.ids.rows();
  for (int64_t token = 0; token < tokens; ++token) {
    if (!is_valid[token]) continue;
    const int32_t* ids = id_rows[token];
    for (int64_t slot = 0; slot < top_k; ++slot) {
      if (ids[slot] < 0) continue;
      MF_CHECK_LT(ids[slot], args.num_experts) << "at token " << token;
      body(ids[slot], static_cast<int32_t>(token), static_cast<int32_t>(token * top_k + slot));
    }
  }
}

// Fills counts from routed, next[e] with the first row of expert e and end[e] with the row past
// its last; returns the number of rows.
int32_t LayOutRows(const SortByExpertArgs& args, int32_t* next, int32_t* end) {
  const int32_t* routed = args.routed.data<int32_t>();
  int32_t* counts = args.counts.data<int32_t>();
  int64_t total = 0;
  for (int64_t expert = 0; expert < args.num_experts; ++expert) {
    int64_t count = routed[expert];
    if (!args.limits.empty()) count = std::min(count, args.limits[static_cast<size_t>(expert)]);
    counts[expert] = static_cast<int32_t>(count);
    next[expert] = static_cast<int32_t>(total);
    total += count;
    end[expert] = static_cast<int32_t>(total);
  }
  return static_cast<int32_t>(total);
}

}  // namespace

// One thread: the sort takes under a thousandth of the experts' own work.
void CpuBackend::SortByExpert(const SortByExpertArgs& args) {
  const int64_t experts = args.num_experts, tokens = args.ids.rows(), pairs = args.ids.numel();
  const Tensor scratch = Tensor::Contiguous({2 * experts + tokens + pairs}, DType::kI32);
  int32_t* next = scratch.data<int32_t>();
  int32_t* end = next + experts;
  int32_t* used = end + experts;  // entries of token_rows filled so far, by token
  int32_t* row_to_token = used + tokens;

  int32_t* routed = args.routed.data<int32_t>();
  std::fill_n(routed, experts, 0);
  ForEachRouted(args, [&](int32_t expert, int32_t, int32_t) { ++routed[expert]; });
  const int32_t total = LayOutRows(args, next, end);

  int32_t* row_to_slot = args.row_to_slot.span<int32_t>().data();
  ForEachRouted(args, [&](int32_t expert, int32_t token, int32_t slot) {
    if (next[expert] == end[expert]) return;  // past its limit
    const int32_t row = next[expert]++;
    row_to_slot[row] = slot;
    row_to_token[row] = token;
  });
  std::fill(row_to_slot + total, row_to_slot + pairs, -1);

  // Rows in ascending order reach each token's list in ascending order.
  Fill(-1, args.token_rows);
  std::fill_n(used, tokens, 0);
  const cpu::Rows<int32_t> token_rows(args.token_rows);
  for (int32_t row = 0; row < total; ++row) {
    const int32_t token = row_to_token[row];
    token_rows[token][used[token]++] = row;
  }
}

}  // namespace meshfold
