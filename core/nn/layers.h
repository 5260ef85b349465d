// The plain layers: linear, embedding, norm, loss head.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/autograd/ops.h"
#include "core/nn/module.h"

namespace meshfold {

// y [T, O] = x W^T (+ b). Parameters: <name>.weight [O, I], <name>.bias [O].
class LinearLayer : public Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    bool bias = false;
    double init_stddev = 0.02;
  };
  LinearLayer(const std::string& name, const Options& options);
  void VisitParameters(ParameterVisitor visit) override;
  Parameter& weight() { return weight_; }
  Parameter* bias() { return has_bias_ ? &bias_ : nullptr; }
  // Where ranks hold summands of the output, one of them adds the bias.
  void set_adds_bias(bool value) { adds_bias_ = value; }

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  Parameter weight_, bias_;
  bool has_bias_, adds_bias_ = true;
};

// The token embedding: ignores its input, reads context.batch().tokens. Parameter <name>.weight
// [V, D]; where it is a part of the vocabulary, ids of other parts give zero rows.
class EmbeddingLayer : public Module {
 public:
  EmbeddingLayer(const std::string& name, int64_t vocab_size, int64_t hidden_size,
                 double init_stddev);
  void VisitParameters(ParameterVisitor visit) override { visit(weight_); }
  Parameter& weight() { return weight_; }

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  Parameter weight_;
};

// RMSNorm with parameter <name>.weight [cols / groups].
class RmsNormLayer : public Module {
 public:
  RmsNormLayer(const std::string& name, int64_t cols, const RmsNormOptions& options);
  void VisitParameters(ParameterVisitor visit) override { visit(weight_); }
  Parameter& weight() { return weight_; }
  // How many slices of a row are normed apart: heads, of which a rank may have a part.
  void set_groups(int64_t groups) { options_.groups = groups; }
  // {x + residual, norm of it} in one pass.
  std::pair<Variable, Variable> AddAndNorm(const Variable& x, const Variable& residual);

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  Parameter weight_;
  RmsNormOptions options_;
};

// Strategy of the last layer: from final activations and the head weight [V, D] to the loss. The
// tensor and context axes install theirs.
class LossHead {
 public:
  virtual ~LossHead() = default;
  // x [T, D]. With targets: the loss, f32 [1] (sum over counted targets times loss_scale). Without:
  // an undefined Variable; context.logits is then always set.
  virtual Variable Compute(const Variable& x, const Variable& weight, StepContext& context) = 0;
};

// Cross-entropy on one rank.
std::unique_ptr<LossHead> MakeLocalLossHead();

// Final norm, head and loss. The head weight is its own parameter <name>.weight [V, D], or the
// embedding's when tied.
class OutputLayer : public Module {
 public:
  struct Options {
    int64_t vocab_size = 0, hidden_size = 0;
    double norm_eps = 1e-6;
    double init_stddev = 0.02;
  };
  // `tied`: the embedding's weight, or undefined for an own one.
  OutputLayer(const std::string& norm_name, const std::string& head_name, const Options& options,
              Variable tied);
  void VisitParameters(ParameterVisitor visit) override;
  void VisitModules(ModuleVisitor visit) override;
  void set_loss_head(std::unique_ptr<LossHead> head) { loss_head_ = std::move(head); }
  RmsNormLayer& norm() { return norm_; }
  Parameter& weight() { return weight_; }  // not visited when tied

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  RmsNormLayer norm_;
  Parameter weight_;
  Variable tied_;
  std::unique_ptr<LossHead> loss_head_;
};

}  // namespace meshfold
