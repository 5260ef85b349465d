// Sizes and choices of one mixture-of-experts layer: plain data, filled from a model's config.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace meshfold::moe {

struct MoeOptions {
  int64_t hidden_size = 0;               // D
  int64_t num_experts = 0;               // E
  int64_t top_k = 0;                     // K, experts a token is sent to
  int64_t expert_size = 0;               // F, hidden width of one expert
  int64_t num_shared_experts = 0;        // one shared SwiGLU of width num_shared_experts * F
  std::string router = "softmax_top_k";  // a name in RouterRegistry()
  std::string dispatcher = "auto";       // a name in DispatcherRegistry(), or "auto"
  std::string planner = "static_ep";     // a name in PlannerRegistry()
  bool renormalize = true;               // chosen weights are divided by their sum; K = 1 makes
                                         // them all 1 then, and they teach the gate nothing
  double routed_scaling = 1.0;           // factor on the chosen weights
  int64_t num_groups = 1;                // groups that experts are chosen by (DeepSeek V3)
  int64_t top_k_groups = 1;              // ... and how many of them a token may use
  double aux_loss_coefficient = 0.0;     // Switch balance loss, 1 when balanced
  double z_loss_coefficient = 0.0;       // mean over tokens of logsumexp(logits)^2
  double bias_update_rate = 0.0;         // sigmoid_group_bias: step of the balancing bias
  double capacity_factor = 0.0;          // 0: no limit; else, in training, an expert takes
                                         // ceil(factor * tokens * K / E) rows of a micro-batch
  double init_stddev = 0.02;
};

// InvalidArgument with both values when sizes do not fit together: non-positive sizes, K > E,
// groups that do not divide E, fewer experts in the allowed groups than K, groups of one expert,
// negative coefficients. Unknown names are the registries' own errors.
absl::Status Validate(const MoeOptions& options);

}  // namespace meshfold::moe
