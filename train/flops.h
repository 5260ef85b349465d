// How many floating-point operations a training step is: exact counts of matrix products.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model_config.h"

namespace meshfold::train {

// Forward FLOPs of one token in everything but the attention core: 2 per weight of each matrix that
// the token meets. Experts count by top-k, the head counts, the embedding look-up does not.
double MatrixFlopsPerToken(const models::ModelConfig& config);

// Of that, the routed experts alone.
double RoutedExpertFlopsPerToken(const models::ModelConfig& config);

// Forward FLOPs of the attention core over packed documents: 4 H d for every (query, key) pair that
// is seen, sum over documents of L (L + 1) / 2 without a window.
double AttentionFlops(const models::ModelConfig& config, const std::vector<int32_t>& cu_seqlens);

// Forward and backward over packed documents: three times the forward (no recompute counted).
// `is_padding` [T] as in MicroBatch, empty where there is none: documents of padding are not
// counted, so that no padding makes a run look busier than it is.
double TrainingFlops(const models::ModelConfig& config, const std::vector<int32_t>& cu_seqlens,
                     const std::vector<uint8_t>& is_padding = {});

}  // namespace meshfold::train
