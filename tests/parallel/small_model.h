// A language model small enough to train in a test: embedding, a hidden layer, loss head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/nn/init.h"
#include "core/nn/layer_stack.h"
#include "core/nn/layers.h"
#include "core/nn/step_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {

inline constexpr int64_t kSmallVocab = 11;

// A parameter that no batch reaches and a buffer, as an idle expert and a balancing bias are.
class IdleLayer : public Module {
 public:
  IdleLayer()
      : weight_(MakeParameter("idle.weight", {3, 2}, InitSpec())),
        buffer_(MakeParameter("idle.buffer", {4}, {InitSpec::Kind::kConstant, 0.5})) {
    buffer_.trained = false;
    buffer_.value.set_requires_grad(false);
  }
  void VisitParameters(ParameterVisitor visit) override {
    visit(weight_);
    visit(buffer_);
  }

 protected:
  Variable Forward(const Variable& x, StepContext&) override { return x; }

 private:
  Parameter weight_, buffer_;
};

// Not yet initialised. Matrices have the type `dtype`, all else is f32.
inline std::unique_ptr<LayerStack> MakeSmallModel(DType dtype = DType::kF32,
                                                  int64_t hidden_size = 6) {
  auto model = std::make_unique<LayerStack>();
  model->Add("embedding",
             std::make_unique<EmbeddingLayer>("embedding", kSmallVocab, hidden_size, 1.0));
  model->Add(
      "hidden",
      std::make_unique<LinearLayer>(
          "hidden", LinearLayer::Options{
                        .in = hidden_size, .out = hidden_size, .bias = true, .init_stddev = 0.5}));
  model->Add("idle", std::make_unique<IdleLayer>());
  model->Add("head", std::make_unique<OutputLayer>("norm", "head",
                                                   OutputLayer::Options{.vocab_size = kSmallVocab,
                                                                        .hidden_size = hidden_size,
                                                                        .init_stddev = 0.5},
                                                   Variable()));
  model->VisitParameters([dtype](Parameter& parameter) {
    if (parameter.shape.rank() == 2) parameter.dtype = dtype;
  });
  return model;
}

// One document of random tokens; every target counts.
inline PackedBatch MakeSmallBatch(absl::string_view name, int64_t num_tokens) {
  std::vector<int32_t> tokens =
      ToVector<int32_t>(RandomIds(name, {num_tokens + 1}, 0, kSmallVocab));
  std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
  tokens.pop_back();
  return MakePackedBatch(tokens, targets, {0, static_cast<int32_t>(num_tokens)});
}

}  // namespace meshfold::testing
