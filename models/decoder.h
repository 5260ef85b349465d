// A decoder-only language model as a LayerStack: "embedding", "layers.N", "head".
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "core/nn/layer_stack.h"
#include "models/model_config.h"

namespace meshfold::models {

// Builds the layers; parameters have no tensors yet (core/nn/init or a load gives them). Uses the
// current context for the rotary table. InvalidArgument when the config does not validate or names
// an unknown plugin.
absl::StatusOr<std::unique_ptr<LayerStack>> BuildDecoder(const ModelConfig& config);

}  // namespace meshfold::models
