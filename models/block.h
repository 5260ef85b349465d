// One decoder block: x + Attention(Norm(x)), then x + Ffn(Norm(x)). Single-device code.
#pragma once

#include <memory>
#include <string>

#include "core/nn/attention.h"
#include "core/nn/layers.h"
#include "core/nn/module.h"
#include "models/model_config.h"

namespace meshfold::models {

// Parameters: <name>.input_norm.weight, <name>.attention.*, <name>.post_attention_norm.weight, and
// <name>.mlp.* or <name>.moe.*.
class DecoderBlock : public Module {
 public:
  // `layer` counts from 0; `rope` is shared by the blocks.
  DecoderBlock(const std::string& name, const ModelConfig& config, int64_t layer,
               std::shared_ptr<const RopeTable> rope);
  void VisitParameters(ParameterVisitor visit) override;
  void VisitModules(ModuleVisitor visit) override;
  void OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) override;

  SelfAttention& attention() { return attention_; }
  Module& ffn() { return *ffn_; }

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  RmsNormLayer input_norm_;
  SelfAttention attention_;
  RmsNormLayer post_attention_norm_;
  std::unique_ptr<Module> ffn_;
};

}  // namespace meshfold::models
