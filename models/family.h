// A model family: how an architecture appears in Hugging Face files. One file in families/ each.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/registry.h"
#include "models/model_config.h"
#include "nlohmann/json_fwd.hpp"

namespace meshfold::models {

// Names of a family's mixture-of-experts tensors under "model.layers.N.".
struct HfMoeNames {
  std::string block = "mlp";       // "mlp" or "block_sparse_moe"
  std::string gate = "gate_proj";  // of one expert: <block>.experts.<e>.<gate>.weight
  std::string up = "up_proj";
  std::string down = "down_proj";
};

struct Family {
  std::string model_type;    // "model_type" of config.json
  std::string architecture;  // "architectures"[0]
  HfMoeNames moe_names;
  // config.json to ModelConfig. InvalidArgument names the key and what is wrong with it.
  absl::StatusOr<ModelConfig> (*from_hf)(const nlohmann::json& config);
  // ModelConfig to config.json. InvalidArgument when the family has no way to say it.
  absl::StatusOr<nlohmann::json> (*to_hf)(const ModelConfig& config);
};

// Families by name; the name is also the model_type.
Registry<Family>& FamilyRegistry();

}  // namespace meshfold::models
