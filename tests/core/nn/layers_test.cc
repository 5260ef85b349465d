// Linear, embedding, norm, MLP and output layers against f64.
#include "core/nn/layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "core/nn/mlp.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/reference/layers.h"
#include "tests/reference/numeric_gradient.h"
#include "tests/reference/rows.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using reference::Vec;
using Parameters = std::map<std::string, Vec>;

constexpr int64_t kDim = 12;
constexpr int32_t kVocab = 11;
// Chains of a few f32 sums, relative to the largest element.
constexpr double kTolerance = 5e-6;

class LayersTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
  PackedBatch batch_ = RandomBatch({0, 4, 9}, kVocab);
  Tensor x_ = RandomTensor("x", {9, kDim});
};

TEST_F(LayersTest, Linear) {
  for (bool bias : {false, true}) {
    LinearLayer layer("l", {.in = kDim, .out = 7, .bias = bias});
    FillRandom(layer);
    ExpectModule(
        layer, x_, batch_,
        [&](const Vec& x, const Parameters& p) {
          return reference::BiasedLinear(x, p.at("l.weight"), bias ? p.at("l.bias") : Vec(), kDim);
        },
        kTolerance);
  }
}

TEST_F(LayersTest, RmsNorm) {
  for (bool zero_centered : {false, true}) {
    RmsNormLayer layer("n", kDim, {.eps = 0.1, .groups = 3, .zero_centered = zero_centered});
    FillRandom(layer);
    ExpectModule(
        layer, x_, batch_,
        [&](const Vec& x, const Parameters& p) {
          return reference::RmsNorm(
                     x, p.at("n.weight"),
                     {.cols = kDim, .groups = 3, .eps = 0.1, .zero_centered = zero_centered})
              .y;
        },
        kTolerance);
  }
}

TEST_F(LayersTest, AddAndNormIsAddThenNorm) {
  RmsNormLayer layer("n", kDim, {});
  FillRandom(layer);
  Variable x(x_), residual(RandomTensor("residual", {9, kDim}));
  auto [sum, y] = layer.AddAndNorm(x, residual);
  StepContext step(batch_, {});
  ExpectBitEqual(sum.data(), Add(x, residual).data());
  ExpectBitEqual(y.data(), layer(sum, step).data());
}

TEST_F(LayersTest, SwiGluMlp) {
  for (bool bias : {false, true}) {
    SwiGluMlp mlp("m", {.hidden_size = kDim, .intermediate_size = 10, .bias = bias});
    FillRandom(mlp);
    ExpectModule(
        mlp, x_, batch_,
        [&](const Vec& x, const Parameters& p) {
          reference::SwiGluMlpTensors t{
              .x = x, .gate_up = p.at("m.gate_up.weight"), .down = p.at("m.down.weight")};
          if (bias) t.gate_up_bias = p.at("m.gate_up.bias");
          if (bias) t.down_bias = p.at("m.down.bias");
          return reference::SwiGluMlp(t, kDim, 10);
        },
        kTolerance);
  }
}

// Gradients of a bf16 layer are those of its rounded weights.
TEST_F(LayersTest, WeightsInBf16) {
  SwiGluMlp mlp("m", {.hidden_size = kDim, .intermediate_size = 10, .bias = true});
  FillRandom(mlp, 0.4, DType::kBF16);
  ExpectModule(
      mlp, x_, batch_,
      [](const Vec& x, const Parameters& p) {
        return reference::SwiGluMlp({x, p.at("m.gate_up.weight"), p.at("m.gate_up.bias"),
                                     p.at("m.down.weight"), p.at("m.down.bias")},
                                    kDim, 10);
      },
      kTolerance);
}

TEST_F(LayersTest, EmbeddingReadsTheTokensOfTheBatch) {
  EmbeddingLayer layer("e", kVocab, kDim, 0.02);
  FillRandom(layer);
  StepContext step(batch_, {});
  Variable y = layer(Variable(), step);
  Vec table = F64(layer.weight().value.data());
  std::vector<int32_t> ids = ToVector<int32_t>(batch_.tokens);
  ExpectClose(Plain(y.data()), reference::GatherRows(table, kDim, ids, 1), 0);
  Tensor dy = RandomTensor("dy", {9, kDim});
  Backward({Root{y, dy}}, {});
  ExpectClose(layer.weight().value.grad().tensor(),
              reference::AddEmbeddingGradient(Vec(kVocab * kDim), kDim, ids, F64(dy)), kTolerance);
}

class OutputLayerTest : public LayersTest {
 protected:
  std::unique_ptr<OutputLayer> Make(Variable tied) {
    auto layer = std::make_unique<OutputLayer>(
        "norm", "head",
        OutputLayer::Options{.vocab_size = kVocab, .hidden_size = kDim, .norm_eps = 0.1},
        std::move(tied));
    FillRandom(*layer);
    return layer;
  }

  double Reference(const Vec& x, const Vec& norm, const Vec& head) const {
    return reference::HeadLoss(x, norm, head, ToVector<int32_t>(batch_.targets), 0.1, 0.125);
  }

  StepContext::Options options_{.loss_scale = 0.125};
};

TEST_F(OutputLayerTest, LossAndGradients) {
  auto layer = Make(Variable());
  StepContext step(batch_, options_);
  Variable x = Variable::Leaf(x_);
  Variable loss = (*layer)(x, step);
  Parameters p = ValuesOf(*layer);
  Vec norm = p.at("norm.weight"), head = p.at("head.weight");
  ExpectClose(loss.data(), Vec{Reference(F64(x_), norm, head)}, kTolerance);
  EXPECT_FALSE(step.logits.defined());
  Backward(loss, {});
  using reference::NumericGradient;
  ExpectClose(x.grad().tensor(),
              NumericGradient([&](const Vec& v) { return Reference(v, norm, head); }, F64(x_)),
              kTolerance, "dx");
  EXPECT_LT(RelativeError(
                GradientOf(*layer, "norm.weight"),
                NumericGradient([&](const Vec& v) { return Reference(F64(x_), v, head); }, norm)),
            kTolerance);
  EXPECT_LT(RelativeError(
                GradientOf(*layer, "head.weight"),
                NumericGradient([&](const Vec& v) { return Reference(F64(x_), norm, v); }, head)),
            kTolerance);
}

TEST_F(OutputLayerTest, ATiedHeadAddsBothGradientsOfTheEmbedding) {
  EmbeddingLayer embedding("e", kVocab, kDim, 0.02);
  FillRandom(embedding);
  auto layer = Make(embedding.weight().value);
  EXPECT_EQ(ParametersOf(*layer).size(), 1u);  // the norm: the embedding owns the rest
  StepContext step(batch_, options_);
  Variable loss = (*layer)(embedding(Variable(), step), step);
  Vec norm = F64(layer->norm().weight().value.data());
  std::vector<int32_t> ids = ToVector<int32_t>(batch_.tokens);
  auto reference = [&](const Vec& table) {
    return Reference(reference::GatherRows(table, kDim, ids, 1), norm, table);
  };
  Vec table = F64(embedding.weight().value.data());
  ExpectClose(loss.data(), Vec{reference(table)}, kTolerance);
  Backward(loss, {});
  ExpectClose(embedding.weight().value.grad().tensor(),
              reference::NumericGradient(reference, table), kTolerance);
}

TEST_F(OutputLayerTest, LogitsAreKeptWhenAsked) {
  auto layer = Make(Variable());
  options_.want_logits = true;
  StepContext step(batch_, options_);
  (*layer)(Variable(x_), step);
  Parameters p = ValuesOf(*layer);
  Vec normed = reference::RmsNorm(F64(x_), p.at("norm.weight"), {.cols = kDim, .eps = 0.1}).y;
  ExpectClose(Plain(step.logits), reference::Linear(normed, p.at("head.weight"), kDim, kVocab),
              kTolerance);
}

TEST_F(OutputLayerTest, WithoutTargetsThereAreLogitsAndNoLoss) {
  auto layer = Make(Variable());
  ScopedGradMode no_grad(GradMode::kNoGrad);
  PackedBatch batch = MakePackedBatch(ToVector<int32_t>(batch_.tokens), {}, batch_.cu_seqlens);
  StepContext step(batch, options_);
  EXPECT_FALSE((*layer)(Variable(x_), step).defined());
  EXPECT_EQ(step.logits.shape(), Shape({9, kVocab}));
}

TEST_F(OutputLayerTest, TheLossHeadCanBeReplaced) {
  class Sum : public LossHead {
   public:
    Variable Compute(const Variable& x, const Variable& weight, StepContext&) override {
      seen = weight.shape();
      return x;
    }
    Shape seen;
  };
  auto layer = Make(Variable());
  auto head = std::make_unique<Sum>();
  Sum* sum = head.get();
  layer->set_loss_head(std::move(head));
  StepContext step(batch_, options_);
  EXPECT_EQ((*layer)(Variable(x_), step).shape(), x_.shape());
  EXPECT_EQ(sum->seen, Shape({kVocab, kDim}));
}

}  // namespace
}  // namespace meshfold::testing
