// Boundaries, parameters and the layer stack.
#include "core/nn/module.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/autograd/ops.h"
#include "core/nn/attention.h"
#include "core/nn/layer_stack.h"
#include "core/nn/layers.h"
#include "core/nn/mlp.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;

// Adds 1 and writes its name to a log.
class Logged : public Module {
 public:
  Logged(std::string name, std::vector<std::string>* log)
      : log_(log), name_(name), weight_(MakeParameter(name + ".weight", {1}, {})) {}
  void VisitParameters(ParameterVisitor visit) override { visit(weight_); }
  void OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) override {
    log_->push_back(name_ + " after " + std::to_string(contexts.size()));
  }

 protected:
  Variable Forward(const Variable& x, StepContext&) override {
    log_->push_back(name_);
    return Add(x, Variable(MakeTensor({1}, {1})));
  }

 private:
  std::vector<std::string>* log_;
  std::string name_;
  Parameter weight_;
};

class ModuleTest : public ::testing::Test {
 protected:
  static std::vector<std::string> NamesOf(Module& module) {
    std::vector<std::string> names;
    for (Parameter* parameter : ParametersOf(module)) names.push_back(parameter->name);
    return names;
  }

  ScopedTestContext context_;
  std::vector<std::string> log_;
  PackedBatch batch_ = RandomBatch({0, 2});
};

TEST_F(ModuleTest, BoundariesRunBeforeAndAfterForward) {
  Logged module("forward", &log_);
  StepContext step(batch_, {});
  Variable x(MakeTensor({3}, {1}));
  EXPECT_THAT(ToVector<float>(module(x, step).data()), ElementsAre(4));
  module.set_pre_boundary([&](const Variable& v, StepContext& context) {
    EXPECT_EQ(&context, &step);
    log_.push_back("pre");
    return Scale(v, 10.0);
  });
  module.set_post_boundary([&](const Variable& v, StepContext&) {
    log_.push_back("post");
    return Scale(v, 2.0);
  });
  log_.clear();
  EXPECT_THAT(ToVector<float>(module(x, step).data()), ElementsAre(62));
  EXPECT_THAT(log_, ElementsAre("pre", "forward", "post"));
}

TEST_F(ModuleTest, AStackRunsItsLayersInOrder) {
  LayerStack stack;
  for (const char* name : {"a", "b", "c"}) stack.Add(name, std::make_unique<Logged>(name, &log_));
  StepContext step(batch_, {});
  EXPECT_THAT(ToVector<float>(stack(Variable(MakeTensor({0}, {1})), step).data()), ElementsAre(3));
  EXPECT_THAT(log_, ElementsAre("a", "b", "c"));
  EXPECT_THAT(NamesOf(stack), ElementsAre("a.weight", "b.weight", "c.weight"));
  EXPECT_EQ(&stack.Get("b"), stack.entries()[1].module.get());
  EXPECT_DEATH(stack.Get("d"), "no layer 'd'");
  log_.clear();
  std::vector<std::unique_ptr<StepContext>> contexts;
  for (int m = 0; m < 2; ++m)
    contexts.push_back(std::make_unique<StepContext>(batch_, StepContext::Options{}));
  stack.OnStepEnd(contexts);
  EXPECT_THAT(log_, ElementsAre("a after 2", "b after 2", "c after 2"));
}

TEST_F(ModuleTest, ParametersStartAsLeavesWithoutData) {
  Parameter parameter = MakeParameter("w", {2, 3}, {InitSpec::Kind::kConstant, 1.0}, false);
  EXPECT_EQ(parameter.shape, Shape({2, 3}));
  EXPECT_TRUE(parameter.value.requires_grad());
  EXPECT_FALSE(parameter.value.data().defined());
  EXPECT_FALSE(parameter.decay);
}

// Everything a block has, in the order that checkpoints and buckets rely on.
TEST_F(ModuleTest, ParametersComeInAFixedOrderUnderUniqueNames) {
  LayerStack stack;
  auto embedding = std::make_unique<EmbeddingLayer>("embedding", 11, 16, 0.02);
  Variable table = embedding->weight().value;
  stack.Add("embedding", std::move(embedding));
  SelfAttention::Options attention{
      .hidden_size = 16,
      .attention = {.num_heads = 2, .num_kv_heads = 1, .head_dim = 8, .value_dim = 8},
      .qk_norm = QkNormKind::kPerHead,
      .bias = true};
  stack.Add("attention", std::make_unique<SelfAttention>("layers.0.attention", attention));
  stack.Add("mlp",
            std::make_unique<SwiGluMlp>(
                "layers.0.mlp",
                SwiGluMlp::Options{.hidden_size = 16, .intermediate_size = 24, .bias = true}));
  stack.Add("head", std::make_unique<OutputLayer>(
                        "norm", "head", OutputLayer::Options{.vocab_size = 11, .hidden_size = 16},
                        Variable()));
  std::vector<std::string> names = NamesOf(stack);
  EXPECT_THAT(names, ElementsAre("embedding.weight", "layers.0.attention.q.weight",
                                 "layers.0.attention.q.bias", "layers.0.attention.k.weight",
                                 "layers.0.attention.k.bias", "layers.0.attention.v.weight",
                                 "layers.0.attention.v.bias", "layers.0.attention.o.weight",
                                 "layers.0.attention.o.bias", "layers.0.attention.q_norm.weight",
                                 "layers.0.attention.k_norm.weight", "layers.0.mlp.gate_up.weight",
                                 "layers.0.mlp.down.weight", "layers.0.mlp.gate_up.bias",
                                 "layers.0.mlp.down.bias", "norm.weight", "head.weight"));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (Parameter* parameter : ParametersOf(stack)) {
    // Biases of several rows are still biases.
    const bool is_bias = absl::EndsWith(parameter->name, ".bias");
    const bool is_matrix = parameter->shape.rank() > 1 && !is_bias;
    EXPECT_EQ(parameter->decay, is_matrix) << parameter->name;
  }
  EXPECT_EQ(ParameterNamed(stack, "layers.0.attention.k.weight").shape, Shape({8, 16}));
  EXPECT_EQ(ParameterNamed(stack, "layers.0.attention.o.weight").shape, Shape({16, 16}));
  EXPECT_EQ(ParameterNamed(stack, "layers.0.attention.q_norm.weight").shape, Shape({8}));
  EXPECT_EQ(ParameterNamed(stack, "layers.0.mlp.gate_up.weight").shape, Shape({2, 24, 16}));
}

}  // namespace
}  // namespace meshfold::testing
