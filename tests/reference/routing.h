// Expert selection and the sort by expert, by full sorts.
#pragma once

#include <algorithm>
#include <numeric>

#include "tests/reference/rows.h"

namespace meshfold::reference {

struct RoutingConfig {
  int64_t num_experts = 1;
  int64_t top_k = 1;
  int64_t num_groups = 1;
  int64_t top_k_groups = 1;
};

// Indices of `scores` from best to worst, ties in index order.
inline Ids Ranked(const Vec& scores) {
  Ids order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  return order;
}

// The chosen experts of each token, best first.
inline Ids SelectExperts(const Vec& scores, const Vec& bias, const RoutingConfig& config) {
  Ids ids;
  const int64_t experts = config.num_experts, group_size = experts / config.num_groups;
  for (int64_t token = 0; token < NumRows(scores, experts); ++token) {
    Vec biased = Row(scores, token, experts);
    for (int64_t e = 0; e < experts; ++e) biased[e] += bias.empty() ? 0 : bias[e];
    Vec group_scores;
    for (int64_t g = 0; g < config.num_groups; ++g) {
      Vec group = Row(biased, g, group_size);
      std::sort(group.rbegin(), group.rend());
      group_scores.push_back(group[0] + (group_size > 1 ? group[1] : 0));
    }
    const Ids groups = Ranked(group_scores);
    std::vector<bool> competes(config.num_groups, config.num_groups == 1);
    for (int64_t g = 0; g < config.top_k_groups; ++g) competes[groups[g]] = true;
    int64_t taken = 0;
    for (int32_t expert : Ranked(biased)) {
      if (taken == config.top_k) break;
      if (!competes[expert / group_size]) continue;
      ids.push_back(expert);
      ++taken;
    }
  }
  return ids;
}

struct SortedRows {
  Ids counts, routed, row_to_slot, token_rows;
};

// `valid` may be empty: all tokens. `limits`: rows each expert keeps; empty: all.
inline SortedRows SortByExpert(const Ids& ids, int64_t top_k, int64_t num_experts,
                               const std::vector<int64_t>& limits, const std::vector<int>& valid) {
  SortedRows sorted{Ids(num_experts), Ids(num_experts), Ids(ids.size(), -1), Ids(ids.size(), -1)};
  int32_t row = 0;
  for (int32_t expert = 0; expert < num_experts; ++expert) {
    for (size_t slot = 0; slot < ids.size(); ++slot) {
      const size_t token = slot / top_k;
      if (ids[slot] != expert || (!valid.empty() && valid[token] == 0)) continue;
      ++sorted.routed[expert];
      if (!limits.empty() && sorted.counts[expert] == limits[expert]) continue;
      ++sorted.counts[expert];
      sorted.row_to_slot[row] = static_cast<int32_t>(slot);
      // Rows come in ascending order, so a token's next free entry keeps its list ascending.
      size_t entry = token * top_k;
      while (sorted.token_rows[entry] >= 0) ++entry;
      sorted.token_rows[entry] = row++;
    }
  }
  return sorted;
}

}  // namespace meshfold::reference
