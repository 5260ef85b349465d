// What a decoder-only language model looks like: plain data, filled from YAML or an HF config.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace meshfold::models {

enum class QkNorm {
  kNone,
  kPerHead,        // RMSNorm over head_dim, one weight [head_dim] shared by the heads (Qwen3)
  kPerProjection,  // RMSNorm over the whole projection before the head split (OLMoE)
};

// Rotary embedding frequencies (half-split layout).
struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3, yarn; 0: max_position
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  double mscale = 0.0;                // yarn; 0: unset
  double mscale_all_dim = 0.0;        // yarn; 0: unset
  double attention_factor = 0.0;      // yarn; 0: derived from factor, mscale and mscale_all_dim
  bool truncate = true;               // yarn: round the correction range to whole dims

  bool operator==(const RopeConfig&) const = default;
};

// The mixture-of-experts part of a block. num_experts 0: a dense model.
struct MoeConfig {
  int64_t num_experts = 0;
  int64_t top_k = 0;
  int64_t expert_size = 0;         // hidden width F of one expert
  int64_t num_shared_experts = 0;  // one shared SwiGLU of width num_shared_experts * expert_size
  std::string router = "softmax_top_k";  // a name in the router registry
  bool renormalize = true;               // chosen weights divided by their sum
  double routed_scaling = 1.0;           // factor on the chosen weights (sigmoid routers)
  int64_t num_groups = 1;                // sigmoid_group_bias: groups of experts
  int64_t top_k_groups = 1;              // ... and how many of them a token may use
  double aux_loss_coefficient = 0.0;     // Switch balance loss per layer, 1 when balanced
  double z_loss_coefficient = 0.0;       // mean(logsumexp(logits)^2)
  double bias_update_rate = 0.0;         // sigmoid_group_bias: step of the balancing bias
  double capacity_factor = 0.0;  // 0: no limit; else ceil(factor * tokens * k / E) rows an expert
  std::string dispatcher = "auto";  // a name in the dispatcher registry, or "auto": by the ranks

  bool operator==(const MoeConfig&) const = default;
};

// Ids that mean something to whoever feeds or reads the model; -1 and empty: none. Kept for
// exports, since other programs take a default of their own where a config.json does not say it;
// `generate` stops at an eos.
struct SpecialTokens {
  int64_t bos = -1, pad = -1;
  std::vector<int64_t> eos;  // any of them ends a text

  bool operator==(const SpecialTokens&) const = default;
};

struct ModelConfig {
  std::string family =
      "qwen3_moe";  // a name in the family registry: llama, mixtral, qwen3_moe, olmoe
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t num_layers = 4;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 64;
  int64_t intermediate_size = 1024;  // width of dense MLPs
  int64_t max_position = 4096;       // longest document the rotary table is made for
  double norm_eps = 1e-6;
  bool tie_embeddings = false;
  int64_t sliding_window = 0;  // 0: full causal attention; else a query sees this many keys
  QkNorm qk_norm = QkNorm::kNone;
  double clip_qkv = 0.0;        // 0: off; else q, k, v clamped to [-clip, clip]
  bool attention_bias = false;  // biases on q, k, v and o projections (Llama option)
  bool mlp_bias = false;
  RopeConfig rope;
  MoeConfig moe;
  std::vector<bool> layer_is_moe;   // empty: every layer when moe.num_experts > 0
  double initializer_range = 0.02;  // stddev of normal initial weights
  SpecialTokens special_tokens;

  bool operator==(const ModelConfig&) const = default;

  bool IsMoeLayer(int64_t layer) const {
    if (moe.num_experts == 0) return false;
    return layer_is_moe.empty() || layer_is_moe[static_cast<size_t>(layer)];
  }
};

// What a size may be at most: beyond that it is a mistake, found before memory is asked for.
inline constexpr int64_t kMaxModelSize = int64_t{1} << 24;
inline constexpr int64_t kMaxModelLayers = 100'000;
inline constexpr int64_t kMaxModelExperts = 1 << 16;

// One sentence with both values when the sizes do not fit together (top-k above the number of
// experts, heads not divisible by KV heads, odd head_dim, sizes outside their range; unknown names
// are the registries' own errors).
absl::Status Validate(const ModelConfig& config);

// Exact number of parameters, and of those that one token uses (experts by top-k).
int64_t NumParameters(const ModelConfig& config);
int64_t NumActiveParameters(const ModelConfig& config);

}  // namespace meshfold::models
