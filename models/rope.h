// Rotary embedding tables: frequencies with the published scalings, computed in f64 on the host.
#pragma once

#include <cstdint>
#include <vector>

#include "core/autograd/ops.h"
#include "models/model_config.h"

namespace meshfold::models {

// Angular frequencies f_i, i < head_dim / 2, after scaling. Su et al. 2021 (RoPE); llama3: the
// Llama 3.1 release; yarn: Peng et al. 2023.
std::vector<double> RopeFrequencies(const RopeConfig& config, int64_t head_dim,
                                    int64_t max_position);

// The factor on cos and sin (yarn's attention factor; 1 otherwise).
double RopeAttentionFactor(const RopeConfig& config);

// cos and sin [num_positions, head_dim / 2] on the current allocator.
RopeTable MakeRopeTable(const RopeConfig& config, int64_t head_dim, int64_t max_position);

}  // namespace meshfold::models
