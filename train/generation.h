// Text generation: one token at a time through the KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/nn/layer_stack.h"

namespace meshfold::train {

struct GenerateOptions {
  int64_t max_new_tokens = 64;
  double temperature = 0.0;  // 0: the most likely token
  int64_t top_k = 0;         // 0: all; else sample among the k most likely
  uint64_t seed = 0;         // the draw of position p is a function of (seed, p)
  std::vector<int32_t> eos;  // stops after any of these tokens
  int64_t max_position = 0;  // the model's longest document
  // On several ranks: makes all of them take the first one's token. Ranks compute the same logits,
  // up to rounding where rows lie in other places of a product.
  std::function<int32_t(int32_t)> agree;
};

// Continues `prompt` (not empty) and returns the new tokens; calls `emit` for each as it appears.
// InvalidArgument when prompt and new tokens exceed max_position, for an id that the model does not
// have and for negative options. Runs in the current context without gradients. Ties go to the
// lower id.
absl::StatusOr<std::vector<int32_t>> Generate(LayerStack& model, const std::vector<int32_t>& prompt,
                                              const GenerateOptions& options,
                                              const std::function<void(int32_t)>& emit);

// The next token for one row of logits: exposed for its tests.
int32_t SampleToken(const std::vector<float>& logits, const GenerateOptions& options,
                    int64_t position);

}  // namespace meshfold::train
