// Qwen3-MoE: per-head q and k norms, explicit head_dim, dense layers may be mixed in.
#include "core/base/status_macros.h"
#include "models/family.h"
#include "models/hf_config.h"

namespace meshfold::models {
namespace {

// Layer i is MoE iff it is not listed and (i + 1) % step == 0.
absl::Status ReadSparseLayers(const nlohmann::json& config, ModelConfig* model) {
  MF_ASSIGN_OR_RETURN(int64_t step, HfValue<int64_t>(config, "decoder_sparse_step", 1));
  if (step <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: decoder_sparse_step is ", step, ", must be positive"));
  }
  for (int64_t layer = 0; layer < model->num_layers; ++layer) {
    model->layer_is_moe.push_back((layer + 1) % step == 0);
  }
  auto dense = config.find("mlp_only_layers");
  if (dense == config.end() || dense->is_null()) return absl::OkStatus();
  if (!dense->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: 'mlp_only_layers' is ", ShowJson(*dense), ", not a list"));
  }
  for (const nlohmann::json& layer : *dense) {
    if (!IsInt64(layer) || layer.get<int64_t>() < 0 || layer.get<int64_t>() >= model->num_layers) {
      return absl::InvalidArgumentError(absl::StrCat("config.json: mlp_only_layers holds ",
                                                     ShowJson(layer), ", the model has ",
                                                     model->num_layers, " layers"));
    }
    model->layer_is_moe[layer.get<size_t>()] = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> FromHf(const nlohmann::json& config) {
  ModelConfig model;
  model.family = "qwen3_moe";
  model.qk_norm = QkNorm::kPerHead;
  MF_RETURN_IF_ERROR(ReadCommonHf(config, &model));
  MF_ASSIGN_OR_RETURN(int64_t experts, HfValue<int64_t>(config, "num_local_experts", 128));
  MF_ASSIGN_OR_RETURN(model.moe.num_experts, HfValue<int64_t>(config, "num_experts", experts));
  MF_ASSIGN_OR_RETURN(model.moe.top_k, HfValue<int64_t>(config, "num_experts_per_tok", 8));
  MF_ASSIGN_OR_RETURN(model.moe.expert_size,
                      HfValue<int64_t>(config, "moe_intermediate_size", 768));
  MF_ASSIGN_OR_RETURN(model.moe.renormalize, HfValue<bool>(config, "norm_topk_prob", false));
  MF_ASSIGN_OR_RETURN(bool use_window, HfValue<bool>(config, "use_sliding_window", false));
  MF_ASSIGN_OR_RETURN(int64_t window, HfValue<int64_t>(config, "sliding_window", 0));
  model.sliding_window = use_window ? window : 0;
  MF_RETURN_IF_ERROR(ReadSparseLayers(config, &model));
  return model;
}

absl::StatusOr<nlohmann::json> ToHf(const ModelConfig& model) {
  MF_RETURN_IF_ERROR(CheckPlainSoftmaxMoe(model));
  MF_RETURN_IF_ERROR(RefuseIf(model.qk_norm != QkNorm::kPerHead, model,
                              "attention without per-head q and k norms"));
  MF_RETURN_IF_ERROR(RefuseIf(model.clip_qkv > 0, model, "clipped q, k and v"));
  nlohmann::json dense = nlohmann::json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (!model.IsMoeLayer(layer)) dense.push_back(layer);
  }
  nlohmann::json window =
      model.sliding_window > 0 ? nlohmann::json(model.sliding_window) : nlohmann::json(nullptr);
  return WriteCommonHf(model, {{"num_experts", model.moe.num_experts},
                               {"num_experts_per_tok", model.moe.top_k},
                               {"moe_intermediate_size", model.moe.expert_size},
                               {"norm_topk_prob", model.moe.renormalize},
                               {"use_sliding_window", model.sliding_window > 0},
                               {"sliding_window", window},
                               {"decoder_sparse_step", 1},
                               {"mlp_only_layers", dense},
                               {"router_aux_loss_coef", model.moe.aux_loss_coefficient},
                               {"output_router_logits", false}});
}

MF_REGISTER(FamilyRegistry(), "qwen3_moe",
            Family{"qwen3_moe", "Qwen3MoeForCausalLM", {}, FromHf, ToHf});

}  // namespace
}  // namespace meshfold::models
