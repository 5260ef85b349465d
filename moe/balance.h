// The arithmetic of load balancing, on plain counts: pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace meshfold::moe {

// Rows that an expert may take of `num_tokens` tokens sent to `top_k` experts each:
// ceil(factor * num_tokens * top_k / num_experts). 0 (no limit) when factor is 0.
int64_t Capacity(double factor, int64_t num_tokens, int64_t top_k, int64_t num_experts);

// [ranks][E]: how many of each rank's rows an expert keeps of the `capacity` that it may take, when
// those of earlier ranks come first. counts_RE: rows in the order of their tokens.
std::vector<std::vector<int64_t>> KeptRows(absl::Span<const std::vector<int64_t>> counts_RE,
                                           int64_t capacity);

// Coefficients c_E such that sum over the `num_tokens` local tokens t and experts e of
// c_e scores_te is
//     weight * E * sum_e f_e P_e,   f_e = counts_e / sum(counts),   P_e = mean over t of scores_te:
// the Switch balance loss (Fedus et al. 2021, eq. 4, with top-k counts), weight when all is equal.
// counts_E are rows before drops of the whole micro-batch, all ranks; f is a constant to gradients.
// Zeros when there are no tokens.
std::vector<float> BalanceCoefficients(absl::Span<const int64_t> counts_E, int64_t num_tokens,
                                       double weight);

// What a balancing bias moves by: rate * sign(mean load - load_e). Wang et al. 2024, algorithm 1.
std::vector<float> BiasSteps(absl::Span<const int64_t> load_E, double rate);

// How uneven the experts' loads are, in units of their mean; all 1 when equal, all 0 when no expert
// got a row. Percentiles interpolate linearly between order statistics.
struct LoadStatistics {
  double max_over_mean = 0, min = 0, p50 = 0, p95 = 0;
};
LoadStatistics StatisticsOf(absl::Span<const int64_t> load_E);

}  // namespace meshfold::moe
