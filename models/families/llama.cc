// Llama: dense decoder with grouped KV heads and rotary positions (llama3 scaling included).
#include "core/base/status_macros.h"
#include "models/family.h"
#include "models/hf_config.h"

namespace meshfold::models {
namespace {

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& config) {
  ModelConfig model;
  model.family = "llama";
  model.norm_eps = 1e-6;
  MF_RETURN_IF_ERROR(ReadCommonHf(config, &model));
  MF_ASSIGN_OR_RETURN(model.mlp_bias, HfValue<bool>(config, "mlp_bias", false));
  return model;
}

absl::StatusOr<nlohmann::json> ToHf(const ModelConfig& model) {
  MF_RETURN_IF_ERROR(RefuseIf(model.moe.num_experts > 0, model, "experts"));
  MF_RETURN_IF_ERROR(RefuseIf(model.qk_norm != QkNorm::kNone, model, "q and k norms"));
  MF_RETURN_IF_ERROR(RefuseIf(model.sliding_window > 0, model, "a sliding window"));
  MF_RETURN_IF_ERROR(RefuseIf(model.clip_qkv > 0, model, "clipped q, k and v"));
  return WriteCommonHf(model, {{"mlp_bias", model.mlp_bias}});
}

MF_REGISTER(FamilyRegistry(), "llama", Family{"llama", "LlamaForCausalLM", {}, FromHf, ToHf});

}  // namespace
}  // namespace meshfold::models
