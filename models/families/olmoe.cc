// OLMoE: q and k norms over the whole projection, raw softmax weights, optional clipping of q, k,
// v.
#include "core/base/status_macros.h"
#include "models/family.h"
#include "models/hf_config.h"

namespace meshfold::models {
namespace {

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& config) {
  ModelConfig model;
  model.family = "olmoe";
  model.norm_eps = 1e-5;
  model.qk_norm = QkNorm::kPerProjection;
  MF_RETURN_IF_ERROR(ReadCommonHf(config, &model));
  MF_ASSIGN_OR_RETURN(int64_t experts, HfValue<int64_t>(config, "num_local_experts", 64));
  MF_ASSIGN_OR_RETURN(model.moe.num_experts, HfValue<int64_t>(config, "num_experts", experts));
  MF_ASSIGN_OR_RETURN(model.moe.top_k, HfValue<int64_t>(config, "num_experts_per_tok", 8));
  MF_ASSIGN_OR_RETURN(model.moe.renormalize, HfValue<bool>(config, "norm_topk_prob", false));
  MF_ASSIGN_OR_RETURN(model.clip_qkv, HfValue<double>(config, "clip_qkv", 0.0));
  model.moe.expert_size = model.intermediate_size;
  return model;
}

absl::StatusOr<nlohmann::json> ToHf(const ModelConfig& model) {
  MF_RETURN_IF_ERROR(CheckPlainSoftmaxMoe(model));
  MF_RETURN_IF_ERROR(RefuseIf(model.qk_norm != QkNorm::kPerProjection, model,
                              "attention without q and k norms over the projection"));
  MF_RETURN_IF_ERROR(RefuseIf(model.sliding_window > 0, model, "a sliding window"));
  // The class of transformers derives it and knows no key for it.
  MF_RETURN_IF_ERROR(RefuseIf(model.head_dim * model.num_heads != model.hidden_size, model,
                              "head_dim other than hidden_size / num_heads"));
  for (bool is_moe : model.layer_is_moe) {
    MF_RETURN_IF_ERROR(RefuseIf(!is_moe, model, "dense layers"));
  }
  nlohmann::json out = WriteCommonHf(
      model,
      {{"num_experts", model.moe.num_experts},
       {"num_experts_per_tok", model.moe.top_k},
       {"norm_topk_prob", model.moe.renormalize},
       {"clip_qkv", model.clip_qkv > 0 ? nlohmann::json(model.clip_qkv) : nlohmann::json(nullptr)},
       {"router_aux_loss_coef", model.moe.aux_loss_coefficient},
       {"output_router_logits", false}});
  out["intermediate_size"] = model.moe.expert_size;
  out.erase("head_dim");
  return out;
}

MF_REGISTER(FamilyRegistry(), "olmoe", Family{"olmoe", "OlmoeForCausalLM", {}, FromHf, ToHf});

}  // namespace
}  // namespace meshfold::models
