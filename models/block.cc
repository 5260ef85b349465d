#include "models/block.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/nn/mlp.h"
#include "moe/moe_layer.h"

namespace meshfold::models {
namespace {

SelfAttention::Options AttentionOf(const ModelConfig& config, int64_t layer,
                                   std::shared_ptr<const RopeTable> rope) {
  SelfAttention::Options options;
  options.hidden_size = config.hidden_size;
  options.attention = {.num_heads = config.num_heads,
                       .num_kv_heads = config.num_kv_heads,
                       .head_dim = config.head_dim,
                       .value_dim = config.head_dim,
                       .scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim)),
                       .window = config.sliding_window};
  switch (config.qk_norm) {
    case QkNorm::kNone:
      options.qk_norm = QkNormKind::kNone;
      break;
    case QkNorm::kPerHead:
      options.qk_norm = QkNormKind::kPerHead;
      break;
    case QkNorm::kPerProjection:
      options.qk_norm = QkNormKind::kPerProjection;
      break;
  }
  options.norm_eps = config.norm_eps;
  options.clip_qkv = config.clip_qkv;
  options.bias = config.attention_bias;
  options.init_stddev = config.initializer_range;
  options.layer = layer;
  options.rope = std::move(rope);
  return options;
}

moe::MoeOptions MoeOf(const ModelConfig& config) {
  moe::MoeOptions options;
  options.hidden_size = config.hidden_size;
  options.num_experts = config.moe.num_experts;
  options.top_k = config.moe.top_k;
  options.expert_size = config.moe.expert_size;
  options.num_shared_experts = config.moe.num_shared_experts;
  options.router = config.moe.router;
  options.dispatcher = config.moe.dispatcher;
  options.renormalize = config.moe.renormalize;
  options.routed_scaling = config.moe.routed_scaling;
  options.num_groups = config.moe.num_groups;
  options.top_k_groups = config.moe.top_k_groups;
  options.aux_loss_coefficient = config.moe.aux_loss_coefficient;
  options.z_loss_coefficient = config.moe.z_loss_coefficient;
  options.bias_update_rate = config.moe.bias_update_rate;
  options.capacity_factor = config.moe.capacity_factor;
  options.init_stddev = config.initializer_range;
  return options;
}

std::unique_ptr<Module> MakeFfn(const std::string& name, const ModelConfig& config, int64_t layer) {
  if (config.IsMoeLayer(layer)) {
    return std::make_unique<moe::MoeLayer>(name + ".moe", MoeOf(config));
  }
  SwiGluMlp::Options options{.hidden_size = config.hidden_size,
                             .intermediate_size = config.intermediate_size,
                             .bias = config.mlp_bias,
                             .init_stddev = config.initializer_range};
  return std::make_unique<SwiGluMlp>(name + ".mlp", options);
}

}  // namespace

DecoderBlock::DecoderBlock(const std::string& name, const ModelConfig& config, int64_t layer,
                           std::shared_ptr<const RopeTable> rope)
    : input_norm_(name + ".input_norm", config.hidden_size, {.eps = config.norm_eps}),
      attention_(name + ".attention", AttentionOf(config, layer, std::move(rope))),
      post_attention_norm_(name + ".post_attention_norm", config.hidden_size,
                           {.eps = config.norm_eps}),
      ffn_(MakeFfn(name, config, layer)) {}

void DecoderBlock::VisitParameters(ParameterVisitor visit) {
  input_norm_.VisitParameters(visit);
  attention_.VisitParameters(visit);
  post_attention_norm_.VisitParameters(visit);
  ffn_->VisitParameters(visit);
}

void DecoderBlock::VisitModules(ModuleVisitor visit) {
  visit(*this);
  input_norm_.VisitModules(visit);
  attention_.VisitModules(visit);
  post_attention_norm_.VisitModules(visit);
  ffn_->VisitModules(visit);
}

void DecoderBlock::OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) {
  ffn_->OnStepEnd(contexts);
}

Variable DecoderBlock::Forward(const Variable& x, StepContext& context) {
  Variable attended = attention_(input_norm_(x, context), context);
  auto [sum, normed] = post_attention_norm_.AddAndNorm(attended, x);
  return Add(sum, (*ffn_)(normed, context));
}

}  // namespace meshfold::models
