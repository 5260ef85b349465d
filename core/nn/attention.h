// Self-attention with rotary positions, grouped KV heads, optional q/k norms, clipping and window.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/autograd/ops.h"
#include "core/base/registry.h"
#include "core/nn/layers.h"
#include "core/nn/module.h"

namespace meshfold {

// Strategy: how q, k, v of the local tokens become attention outputs. Context and Ulysses axes
// install theirs around a registered one.
class AttentionCore {
 public:
  virtual ~AttentionCore() = default;
  // q [T, H d], k [T, Hkv d], v [T, Hkv dv] after norms and rotation -> [T, H dv]. `layer` selects
  // the layer's part of the KV cache.
  virtual Variable Compute(const Variable& q, const Variable& k, const Variable& v, int64_t layer,
                           StepContext& context) = 0;
};

using AttentionCoreFactory = std::unique_ptr<AttentionCore> (*)(const AttentionOptions& options);
Registry<AttentionCoreFactory>& AttentionCoreRegistry();

enum class QkNormKind {
  kNone,
  kPerHead,        // weight [d], each head normed by itself, before rotation
  kPerProjection,  // weight [H d] or [Hkv d], over the whole projection
};

// Parameters: <name>.{q,k,v}.weight [H d, D] or [Hkv d, D], <name>.o.weight [D, H d], optional
// biases, and <name>.{q,k}_norm.weight.
class SelfAttention : public Module {
 public:
  struct Options {
    int64_t hidden_size = 0;
    AttentionOptions attention;  // heads, head_dim (= value_dim here), scale, window
    std::string core = "dense";  // a name in the attention registry
    QkNormKind qk_norm = QkNormKind::kNone;
    double norm_eps = 1e-6;
    double clip_qkv = 0.0;  // 0: off
    bool bias = false;
    double init_stddev = 0.02;
    int64_t layer = 0;                      // index in the KV cache
    std::shared_ptr<const RopeTable> rope;  // shared by the layers; null: no rotation (NoPE)
  };
  // StatusError (NotFound) when the core is not registered.
  SelfAttention(const std::string& name, const Options& options);
  void VisitParameters(ParameterVisitor visit) override;
  void VisitModules(ModuleVisitor visit) override;
  void set_core(std::unique_ptr<AttentionCore> core) { core_ = std::move(core); }
  AttentionCore& core() { return *core_; }

  // For axes. Heads that this rank computes, where the layouts of the projections give it a part of
  // them: makes the core anew. StatusError as of the constructor.
  void SetLocalHeads(int64_t num_heads, int64_t num_kv_heads);
  const Options& options() const { return options_; }
  LinearLayer& q() { return q_; }
  LinearLayer& k() { return k_; }
  LinearLayer& v() { return v_; }
  LinearLayer& o() { return o_; }
  RmsNormLayer* q_norm() { return q_norm_.get(); }  // null without
  RmsNormLayer* k_norm() { return k_norm_.get(); }

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  Options options_;
  LinearLayer q_, k_, v_, o_;
  std::unique_ptr<RmsNormLayer> q_norm_, k_norm_;
  std::unique_ptr<AttentionCore> core_;
};

}  // namespace meshfold
