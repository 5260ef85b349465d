// Mixtral: every layer is a mixture of SwiGLU experts, top-k weights renormalised.
#include "core/base/status_macros.h"
#include "models/family.h"
#include "models/hf_config.h"

namespace meshfold::models {
namespace {

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& config) {
  ModelConfig model;
  model.family = "mixtral";
  model.norm_eps = 1e-5;
  model.rope.theta = 1e6;
  MF_RETURN_IF_ERROR(ReadCommonHf(config, &model));
  MF_ASSIGN_OR_RETURN(int64_t experts, HfValue<int64_t>(config, "num_experts", 8));
  MF_ASSIGN_OR_RETURN(model.moe.num_experts,
                      HfValue<int64_t>(config, "num_local_experts", experts));
  MF_ASSIGN_OR_RETURN(model.moe.top_k, HfValue<int64_t>(config, "num_experts_per_tok", 2));
  MF_ASSIGN_OR_RETURN(model.sliding_window, HfValue<int64_t>(config, "sliding_window", 0));
  model.moe.expert_size = model.intermediate_size;
  model.moe.renormalize = true;
  return model;
}

absl::StatusOr<nlohmann::json> ToHf(const ModelConfig& model) {
  MF_RETURN_IF_ERROR(CheckPlainSoftmaxMoe(model));
  MF_RETURN_IF_ERROR(RefuseIf(model.qk_norm != QkNorm::kNone, model, "q and k norms"));
  MF_RETURN_IF_ERROR(RefuseIf(model.clip_qkv > 0, model, "clipped q, k and v"));
  MF_RETURN_IF_ERROR(RefuseIf(model.attention_bias, model, "attention biases"));
  MF_RETURN_IF_ERROR(RefuseIf(!model.moe.renormalize, model, "weights without renormalisation"));
  for (bool is_moe : model.layer_is_moe) {
    MF_RETURN_IF_ERROR(RefuseIf(!is_moe, model, "dense layers"));
  }
  nlohmann::json out =
      WriteCommonHf(model, {{"num_local_experts", model.moe.num_experts},
                            {"num_experts_per_tok", model.moe.top_k},
                            {"router_aux_loss_coef", model.moe.aux_loss_coefficient},
                            {"output_router_logits", false}});
  out["intermediate_size"] = model.moe.expert_size;
  out["sliding_window"] =
      model.sliding_window > 0 ? nlohmann::json(model.sliding_window) : nlohmann::json(nullptr);
  out.erase("attention_bias");
  return out;
}

MF_REGISTER(
    FamilyRegistry(), "mixtral",
    Family{"mixtral", "MixtralForCausalLM", {"block_sparse_moe", "w1", "w3", "w2"}, FromHf, ToHf});

}  // namespace
}  // namespace meshfold::models
