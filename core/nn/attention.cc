#include "core/nn/attention.h"

#include <utility>

#include "core/base/status_macros.h"

namespace meshfold {
namespace {

LinearLayer::Options Projection(const SelfAttention::Options& options, int64_t in, int64_t out) {
  return {.in = in, .out = out, .bias = options.bias, .init_stddev = options.init_stddev};
}

std::unique_ptr<RmsNormLayer> MakeQkNorm(const std::string& name,
                                         const SelfAttention::Options& options, int64_t num_heads) {
  if (options.qk_norm == QkNormKind::kNone) return nullptr;
  int64_t cols = num_heads * options.attention.head_dim;
  int64_t groups = options.qk_norm == QkNormKind::kPerHead ? num_heads : 1;
  return std::make_unique<RmsNormLayer>(name, cols,
                                        RmsNormOptions{.eps = options.norm_eps, .groups = groups});
}

}  // namespace

Registry<AttentionCoreFactory>& AttentionCoreRegistry() {
  static auto* registry = new Registry<AttentionCoreFactory>("attention core");
  return *registry;
}

SelfAttention::SelfAttention(const std::string& name, const Options& options)
    : options_(options),
      q_(name + ".q", Projection(options, options.hidden_size,
                                 options.attention.num_heads * options.attention.head_dim)),
      k_(name + ".k", Projection(options, options.hidden_size,
                                 options.attention.num_kv_heads * options.attention.head_dim)),
      v_(name + ".v", Projection(options, options.hidden_size,
                                 options.attention.num_kv_heads * options.attention.value_dim)),
      o_(name + ".o", Projection(options, options.attention.num_heads * options.attention.value_dim,
                                 options.hidden_size)),
      q_norm_(MakeQkNorm(name + ".q_norm", options, options.attention.num_heads)),
      k_norm_(MakeQkNorm(name + ".k_norm", options, options.attention.num_kv_heads)),
      core_(ValueOrThrow(AttentionCoreRegistry().Find(options.core))(options.attention)) {}

void SelfAttention::VisitParameters(ParameterVisitor visit) {
  q_.VisitParameters(visit);
  k_.VisitParameters(visit);
  v_.VisitParameters(visit);
  o_.VisitParameters(visit);
  if (q_norm_ != nullptr) q_norm_->VisitParameters(visit);
  if (k_norm_ != nullptr) k_norm_->VisitParameters(visit);
}

void SelfAttention::SetLocalHeads(int64_t num_heads, int64_t num_kv_heads) {
  options_.attention.num_heads = num_heads;
  options_.attention.num_kv_heads = num_kv_heads;
  core_ = ValueOrThrow(AttentionCoreRegistry().Find(options_.core))(options_.attention);
  if (options_.qk_norm != QkNormKind::kPerHead) return;
  q_norm_->set_groups(num_heads);
  k_norm_->set_groups(num_kv_heads);
}

void SelfAttention::VisitModules(ModuleVisitor visit) {
  visit(*this);
  for (LinearLayer* projection : {&q_, &k_, &v_, &o_}) projection->VisitModules(visit);
  if (q_norm_ != nullptr) q_norm_->VisitModules(visit);
  if (k_norm_ != nullptr) k_norm_->VisitModules(visit);
}

Variable SelfAttention::Forward(const Variable& x, StepContext& context) {
  Variable q = q_(x, context), k = k_(x, context), v = v_(x, context);
  if (q_norm_ != nullptr) {
    q = (*q_norm_)(q, context);
    k = (*k_norm_)(k, context);
  }
  if (options_.clip_qkv > 0.0) {
    q = Clamp(q, -options_.clip_qkv, options_.clip_qkv);
    k = Clamp(k, -options_.clip_qkv, options_.clip_qkv);
    v = Clamp(v, -options_.clip_qkv, options_.clip_qkv);
  }
  if (options_.rope != nullptr) {
    const Tensor& positions = context.batch().positions;
    q = Rope(q, options_.attention.num_heads, positions, *options_.rope);
    k = Rope(k, options_.attention.num_kv_heads, positions, *options_.rope);
  }
  return o_(core_->Compute(q, k, v, options_.layer, context), context);
}

}  // namespace meshfold
