#include "moe/balance.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshfold::moe {
namespace {

int64_t Sum(absl::Span<const int64_t> values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// The value `fraction` of the way through `sorted` (not empty).
double Percentile(absl::Span<const int64_t> sorted, double fraction) {
  double at = fraction * static_cast<double>(sorted.size() - 1);
  size_t below = static_cast<size_t>(at);
  size_t above = std::min(below + 1, sorted.size() - 1);
  double low = static_cast<double>(sorted[below]), high = static_cast<double>(sorted[above]);
  return low + (high - low) * (at - static_cast<double>(below));
}

}  // namespace

int64_t Capacity(double factor, int64_t num_tokens, int64_t top_k, int64_t num_experts) {
  if (factor == 0) return 0;
  double rows = factor * static_cast<double>(num_tokens * top_k) / static_cast<double>(num_experts);
  // A factor such as 1.1 is a little above its decimal; that must not cost a row more.
  int64_t capacity = static_cast<int64_t>(std::ceil(rows * (1 - 1e-12)));
  return std::max<int64_t>(capacity, 1);
}

std::vector<std::vector<int64_t>> KeptRows(absl::Span<const std::vector<int64_t>> counts_RE,
                                           int64_t capacity) {
  std::vector<std::vector<int64_t>> kept_RE(counts_RE.begin(), counts_RE.end());
  if (kept_RE.empty()) return kept_RE;
  std::vector<int64_t> left_E(kept_RE[0].size(), capacity);
  for (std::vector<int64_t>& kept_E : kept_RE) {
    for (size_t e = 0; e < kept_E.size(); ++e) {
      kept_E[e] = std::min(kept_E[e], left_E[e]);
      left_E[e] -= kept_E[e];
    }
  }
  return kept_RE;
}

std::vector<float> BalanceCoefficients(absl::Span<const int64_t> counts_E, int64_t num_tokens,
                                       double weight) {
  std::vector<float> coefficients_E(counts_E.size(), 0.0f);
  int64_t total = Sum(counts_E);
  if (num_tokens == 0 || total == 0) return coefficients_E;
  double num_experts = static_cast<double>(counts_E.size());
  double scale = weight * num_experts / (static_cast<double>(total) * num_tokens);
  for (size_t e = 0; e < counts_E.size(); ++e) {
    coefficients_E[e] = static_cast<float>(scale * static_cast<double>(counts_E[e]));
  }
  return coefficients_E;
}

std::vector<float> BiasSteps(absl::Span<const int64_t> load_E, double rate) {
  std::vector<float> steps_E(load_E.size(), 0.0f);
  int64_t total = Sum(load_E), num_experts = static_cast<int64_t>(load_E.size());
  for (size_t e = 0; e < load_E.size(); ++e) {
    // Compared without division, so that an expert at the mean stays exactly where it is.
    int64_t missing = total - num_experts * load_E[e];
    if (missing != 0) steps_E[e] = static_cast<float>(missing > 0 ? rate : -rate);
  }
  return steps_E;
}

LoadStatistics StatisticsOf(absl::Span<const int64_t> load_E) {
  int64_t total = Sum(load_E);
  if (total == 0) return {};
  double mean = static_cast<double>(total) / static_cast<double>(load_E.size());
  std::vector<int64_t> sorted(load_E.begin(), load_E.end());
  std::sort(sorted.begin(), sorted.end());
  return {.max_over_mean = static_cast<double>(sorted.back()) / mean,
          .min = static_cast<double>(sorted.front()) / mean,
          .p50 = Percentile(sorted, 0.5) / mean,
          .p95 = Percentile(sorted, 0.95) / mean};
}

}  // namespace meshfold::moe
