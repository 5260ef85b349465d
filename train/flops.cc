#include "train/flops.h"

#include <algorithm>

namespace meshfold::train {
namespace {

double D(int64_t value) { return static_cast<double>(value); }

double AttentionProjectionFlops(const models::ModelConfig& c) {
  return 2.0 * D(c.hidden_size) * D(c.head_dim) * D(2 * c.num_heads + 2 * c.num_kv_heads);
}

double MoeFlops(const models::ModelConfig& c) {
  double router = 2.0 * D(c.hidden_size) * D(c.moe.num_experts);
  double experts = 6.0 * D(c.hidden_size) * D(c.moe.expert_size);
  return router + experts * D(c.moe.top_k + c.moe.num_shared_experts);
}

// Pairs (i, j) with i - window < j <= i, i < length.
double SeenPairs(int64_t length, int64_t window) {
  if (window <= 0 || window >= length) return 0.5 * D(length) * D(length + 1);
  return 0.5 * D(window) * D(window + 1) + D(length - window) * D(window);
}

double AttentionFlopsOf(const models::ModelConfig& c, int64_t length) {
  return 4.0 * D(c.num_heads) * D(c.head_dim) * D(c.num_layers) *
         SeenPairs(length, c.sliding_window);
}

}  // namespace

double MatrixFlopsPerToken(const models::ModelConfig& config) {
  double flops = 2.0 * D(config.hidden_size) * D(config.vocab_size);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    flops += AttentionProjectionFlops(config);
    flops += config.IsMoeLayer(layer) ? MoeFlops(config)
                                      : 6.0 * D(config.hidden_size) * D(config.intermediate_size);
  }
  return flops;
}

double RoutedExpertFlopsPerToken(const models::ModelConfig& config) {
  double flops = 0.0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsMoeLayer(layer)) continue;
    flops += 6.0 * D(config.hidden_size) * D(config.moe.expert_size) * D(config.moe.top_k);
  }
  return flops;
}

double AttentionFlops(const models::ModelConfig& config, const std::vector<int32_t>& cu_seqlens) {
  double flops = 0.0;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    flops += AttentionFlopsOf(config, cu_seqlens[n + 1] - cu_seqlens[n]);
  }
  return flops;
}

double TrainingFlops(const models::ModelConfig& config, const std::vector<int32_t>& cu_seqlens,
                     const std::vector<uint8_t>& is_padding) {
  double forward = 0.0;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    int64_t begin = cu_seqlens[n], length = cu_seqlens[n + 1] - begin;
    // Padding is a document of its own.
    if (!is_padding.empty() && length > 0 && is_padding[static_cast<size_t>(begin)] != 0) continue;
    forward += D(length) * MatrixFlopsPerToken(config) + AttentionFlopsOf(config, length);
  }
  return 3.0 * forward;
}

}  // namespace meshfold::train
