#include "core/nn/layers.h"

#include <utility>

#include "core/base/check.h"

namespace meshfold {
namespace {

InitSpec Normal(double stddev) { return {InitSpec::Kind::kNormal, stddev}; }
InitSpec Constant(double value) { return {InitSpec::Kind::kConstant, value}; }

class LocalLossHead : public LossHead {
 public:
  Variable Compute(const Variable& x, const Variable& weight, StepContext& context) override {
    const PackedBatch& batch = context.batch();
    if (!batch.targets.defined()) {
      context.logits = Linear(x, weight).data();
      return Variable();
    }
    Tensor* logits = context.options().want_logits ? &context.logits : nullptr;
    return LinearCrossEntropy(x, weight, batch.targets,
                              {.scale = context.options().loss_scale, .logits = logits});
  }
};

}  // namespace

LinearLayer::LinearLayer(const std::string& name, const Options& options)
    : weight_(
          MakeParameter(name + ".weight", {options.out, options.in}, Normal(options.init_stddev))),
      has_bias_(options.bias) {
  if (has_bias_) {
    bias_ = MakeParameter(name + ".bias", {options.out}, Constant(0.0), /*decay=*/false);
  }
}

void LinearLayer::VisitParameters(ParameterVisitor visit) {
  visit(weight_);
  if (has_bias_) visit(bias_);
}

Variable LinearLayer::Forward(const Variable& x, StepContext& context) {
  (void)context;
  Variable y = Linear(x, weight_.value);
  return has_bias_ && adds_bias_ ? AddBias(y, bias_.value) : y;
}

EmbeddingLayer::EmbeddingLayer(const std::string& name, int64_t vocab_size, int64_t hidden_size,
                               double init_stddev)
    : weight_(MakeParameter(name + ".weight", {vocab_size, hidden_size}, Normal(init_stddev))) {}

Variable EmbeddingLayer::Forward(const Variable& x, StepContext& context) {
  (void)x;
  const VocabularyPart part{.first = weight_.part.start[0], .size = weight_.shape[0]};
  return Embedding(weight_.value, context.batch().tokens, part);
}

RmsNormLayer::RmsNormLayer(const std::string& name, int64_t cols, const RmsNormOptions& options)
    : weight_(MakeParameter(name + ".weight", {cols / options.groups},
                            Constant(options.zero_centered ? 0.0 : 1.0), /*decay=*/false)),
      options_(options) {}

std::pair<Variable, Variable> RmsNormLayer::AddAndNorm(const Variable& x,
                                                       const Variable& residual) {
  return AddRmsNorm(x, residual, weight_.value, options_);
}

Variable RmsNormLayer::Forward(const Variable& x, StepContext& context) {
  (void)context;
  return RmsNorm(x, weight_.value, options_);
}

std::unique_ptr<LossHead> MakeLocalLossHead() { return std::make_unique<LocalLossHead>(); }

OutputLayer::OutputLayer(const std::string& norm_name, const std::string& head_name,
                         const Options& options, Variable tied)
    : norm_(norm_name, options.hidden_size, {.eps = options.norm_eps}),
      weight_(MakeParameter(head_name + ".weight", {options.vocab_size, options.hidden_size},
                            Normal(options.init_stddev))),
      tied_(std::move(tied)),
      loss_head_(MakeLocalLossHead()) {}

void OutputLayer::VisitParameters(ParameterVisitor visit) {
  norm_.VisitParameters(visit);
  if (!tied_.defined()) visit(weight_);
}

void OutputLayer::VisitModules(ModuleVisitor visit) {
  visit(*this);
  norm_.VisitModules(visit);
}

Variable OutputLayer::Forward(const Variable& x, StepContext& context) {
  return loss_head_->Compute(norm_(x, context), tied_.defined() ? tied_ : weight_.value, context);
}

}  // namespace meshfold
