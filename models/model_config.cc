#include "models/model_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"

namespace meshfold::models {
namespace {

// Below 2^59: every count and byte offset, of 64-bit elements too, fits int64_t.
constexpr double kMaxParameters = 4e17;

absl::Status Invalid(std::string message) {
  return absl::InvalidArgumentError(absl::StrCat("[ModelConfig] ", message));
}

// T is int64_t for exact counts, double to find out whether they fit.
template <typename T>
T AttentionParameters(const ModelConfig& config) {
  const T model = static_cast<T>(config.hidden_size);
  const T queries = static_cast<T>(config.num_heads) * static_cast<T>(config.head_dim);
  const T keys = static_cast<T>(config.num_kv_heads) * static_cast<T>(config.head_dim);
  T count = 2 * model * queries + 2 * model * keys;  // q, o and k, v projections
  if (config.attention_bias) count += queries + 2 * keys + model;
  if (config.qk_norm == QkNorm::kPerHead) count += 2 * static_cast<T>(config.head_dim);
  if (config.qk_norm == QkNorm::kPerProjection) count += queries + keys;
  return count;
}

template <typename T>
T DenseMlpParameters(const ModelConfig& config) {
  const T model = static_cast<T>(config.hidden_size);
  const T hidden = static_cast<T>(config.intermediate_size);
  return 3 * model * hidden + (config.mlp_bias ? 2 * hidden + model : 0);
}

// Router, shared experts and `experts` of the routed ones.
template <typename T>
T MoeParameters(const ModelConfig& config, int64_t experts) {
  const MoeConfig& moe = config.moe;
  const T model = static_cast<T>(config.hidden_size);
  const T one_expert = 3 * model * static_cast<T>(moe.expert_size);
  T count = static_cast<T>(moe.num_experts) * model;
  if (moe.router == "sigmoid_group_bias") count += static_cast<T>(moe.num_experts);
  return count + (static_cast<T>(experts) + static_cast<T>(moe.num_shared_experts)) * one_expert;
}

int64_t NumMoeLayers(const ModelConfig& config) {
  if (config.moe.num_experts == 0) return 0;
  if (config.layer_is_moe.empty()) return config.num_layers;
  return std::count(config.layer_is_moe.begin(), config.layer_is_moe.end(), true);
}

template <typename T>
T Count(const ModelConfig& config, int64_t experts) {
  const T model = static_cast<T>(config.hidden_size);
  const T table = static_cast<T>(config.vocab_size) * model;
  const int64_t num_moe = NumMoeLayers(config);
  T count = table + (config.tie_embeddings ? 0 : table) + model;  // embedding, head, final norm
  count += static_cast<T>(config.num_layers) * (AttentionParameters<T>(config) + 2 * model);
  count += static_cast<T>(config.num_layers - num_moe) * DenseMlpParameters<T>(config);
  if (num_moe > 0) count += static_cast<T>(num_moe) * MoeParameters<T>(config, experts);
  return count;
}

absl::Status CheckSize(const char* name, int64_t value, int64_t most) {
  if (value <= 0) return Invalid(absl::StrCat(name, " is ", value, "; it must be at least 1"));
  if (value <= most) return absl::OkStatus();
  return Invalid(absl::StrCat(name, " is ", value, "; it may be at most ", most));
}

absl::Status ValidateSizes(const ModelConfig& config) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", config.vocab_size},     {"hidden_size", config.hidden_size},
      {"num_layers", config.num_layers},     {"num_heads", config.num_heads},
      {"num_kv_heads", config.num_kv_heads}, {"head_dim", config.head_dim},
      {"max_position", config.max_position}, {"intermediate_size", config.intermediate_size}};
  for (const auto& [name, value] : sizes) {
    MF_RETURN_IF_ERROR(CheckSize(name, value, kMaxModelSize));
  }
  MF_RETURN_IF_ERROR(CheckSize("num_layers", config.num_layers, kMaxModelLayers));
  if (config.sliding_window < 0) {
    return Invalid(absl::StrCat("sliding_window is ", config.sliding_window,
                                "; it must be 0 (no window) or positive"));
  }
  const int64_t num_flags = static_cast<int64_t>(config.layer_is_moe.size());
  if (num_flags != 0 && num_flags != config.num_layers) {
    return Invalid(absl::StrCat("layer_is_moe has ", num_flags, " entries for num_layers ",
                                config.num_layers));
  }
  return absl::OkStatus();
}

absl::Status ValidateAttention(const ModelConfig& config) {
  if (config.num_heads % config.num_kv_heads != 0) {
    return Invalid(absl::StrCat("num_heads ", config.num_heads,
                                " is not a multiple of num_kv_heads ", config.num_kv_heads));
  }
  if (config.head_dim % 2 != 0) {
    return Invalid(absl::StrCat("head_dim ", config.head_dim,
                                " is odd; rotary embeddings turn pairs of dims"));
  }
  if (!(config.clip_qkv >= 0)) {
    return Invalid(absl::StrCat("clip_qkv is ", config.clip_qkv, "; it must be 0 (off) or more"));
  }
  return absl::OkStatus();
}

absl::Status ValidateNumbers(const ModelConfig& config) {
  const RopeConfig& rope = config.rope;
  const std::pair<const char*, double> positive[] = {
      {"norm_eps", config.norm_eps},
      {"rope.theta", rope.theta},
      {"rope.factor", rope.factor},
      {"rope.low_freq_factor", rope.low_freq_factor},
      {"rope.high_freq_factor", rope.high_freq_factor},
      {"rope.beta_fast", rope.beta_fast},
      {"rope.beta_slow", rope.beta_slow}};
  for (const auto& [name, value] : positive) {
    if (!(value > 0) || !std::isfinite(value)) {
      return Invalid(absl::StrCat(name, " is ", value, "; it must be above 0"));
    }
  }
  const std::pair<const char*, double> not_negative[] = {
      {"initializer_range", config.initializer_range},
      {"rope.mscale", rope.mscale},
      {"rope.mscale_all_dim", rope.mscale_all_dim},
      {"rope.attention_factor", rope.attention_factor}};
  for (const auto& [name, value] : not_negative) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return Invalid(absl::StrCat(name, " is ", value, "; it must be 0 or more"));
    }
  }
  if (rope.scaling == RopeConfig::Scaling::kLlama3 &&
      !(rope.low_freq_factor > 0 && rope.low_freq_factor < rope.high_freq_factor)) {
    return Invalid(absl::StrCat("rope.low_freq_factor ", rope.low_freq_factor,
                                " must be above 0 and below rope.high_freq_factor ",
                                rope.high_freq_factor));
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn && !(rope.beta_fast > rope.beta_slow)) {
    return Invalid(absl::StrCat("rope.beta_fast ", rope.beta_fast, " must be above rope.beta_slow ",
                                rope.beta_slow));
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn && !(rope.theta > 1)) {
    return Invalid(absl::StrCat("rope.theta is ", rope.theta, "; yarn needs one above 1"));
  }
  if (rope.original_max_position < 0) {
    return Invalid(absl::StrCat("rope.original_max_position is ", rope.original_max_position,
                                "; it must be 0 (max_position) or positive"));
  }
  return absl::OkStatus();
}

absl::Status ValidateGroups(const MoeConfig& moe) {
  if (moe.num_groups < 1 || moe.num_experts % moe.num_groups != 0) {
    return Invalid(absl::StrCat("moe.num_experts ", moe.num_experts,
                                " is not a multiple of moe.num_groups ", moe.num_groups));
  }
  if (moe.top_k_groups < 1 || moe.top_k_groups > moe.num_groups) {
    return Invalid(absl::StrCat("moe.top_k_groups ", moe.top_k_groups,
                                " is outside [1, moe.num_groups = ", moe.num_groups, "]"));
  }
  const int64_t reachable = moe.num_experts / moe.num_groups * moe.top_k_groups;
  if (moe.top_k > reachable) {
    return Invalid(absl::StrCat("moe.top_k ", moe.top_k, " is above the ", reachable,
                                " experts of moe.top_k_groups ", moe.top_k_groups, " groups"));
  }
  return absl::OkStatus();
}

absl::Status ValidateMoe(const MoeConfig& moe) {
  if (moe.num_experts < 0) {
    return Invalid(absl::StrCat("moe.num_experts is ", moe.num_experts,
                                "; it must be 0 (a dense model) or positive"));
  }
  if (moe.num_experts == 0) return absl::OkStatus();
  if (moe.top_k < 1 || moe.top_k > moe.num_experts) {
    return Invalid(absl::StrCat("moe.top_k ", moe.top_k,
                                " is outside [1, moe.num_experts = ", moe.num_experts, "]"));
  }
  MF_RETURN_IF_ERROR(CheckSize("moe.num_experts", moe.num_experts, kMaxModelExperts));
  MF_RETURN_IF_ERROR(CheckSize("moe.expert_size", moe.expert_size, kMaxModelSize));
  if (moe.num_shared_experts < 0) {
    return Invalid(absl::StrCat("moe.num_shared_experts is ", moe.num_shared_experts,
                                "; it must be 0 or more"));
  }
  const std::pair<const char*, double> numbers[] = {
      {"moe.aux_loss_coefficient", moe.aux_loss_coefficient},
      {"moe.z_loss_coefficient", moe.z_loss_coefficient},
      {"moe.bias_update_rate", moe.bias_update_rate},
      {"moe.capacity_factor", moe.capacity_factor},
      {"moe.routed_scaling", moe.routed_scaling}};
  for (const auto& [name, value] : numbers) {
    if (!(value >= 0) || !std::isfinite(value)) {
      return Invalid(absl::StrCat(name, " is ", value, "; it must be 0 or more"));
    }
  }
  return ValidateGroups(moe);
}

}  // namespace

absl::Status Validate(const ModelConfig& config) {
  MF_RETURN_IF_ERROR(ValidateSizes(config));
  MF_RETURN_IF_ERROR(ValidateAttention(config));
  MF_RETURN_IF_ERROR(ValidateNumbers(config));
  MF_RETURN_IF_ERROR(ValidateMoe(config.moe));
  const double parameters = Count<double>(config, config.moe.num_experts);
  if (!(parameters < kMaxParameters)) {
    return Invalid(absl::StrCat("the sizes give ", parameters, " parameters; at most ",
                                kMaxParameters, " can be counted"));
  }
  return absl::OkStatus();
}

int64_t NumParameters(const ModelConfig& config) {
  return Count<int64_t>(config, config.moe.num_experts);
}

int64_t NumActiveParameters(const ModelConfig& config) {
  return Count<int64_t>(config, config.moe.top_k);
}

}  // namespace meshfold::models
