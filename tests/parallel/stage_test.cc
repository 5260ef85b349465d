#include "parallel/stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/small_model.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::kSmallVocab;
using testing::MakeSmallBatch;
using testing::MakeSmallModel;

// Fails in Forward while told so.
class FailingLayer : public Module {
 public:
  void VisitParameters(ParameterVisitor) override {}
  absl::Status status;

 protected:
  Variable Forward(const Variable& x, StepContext&) override {
    ThrowIfError(status);
    return x;
  }
};

class StageTest : public ::testing::Test {
 protected:
  StageTest() : model_(MakeSmallModel()) { Initialize(*model_, 1); }

  // One step over `batches`, of which the loss is a mean over all tokens. Returns the loss.
  double Run(Stage& stage, const std::vector<PackedBatch>& batches) {
    int64_t num_tokens = 0;
    for (const PackedBatch& batch : batches) num_tokens += batch.num_tokens();
    stage.BeginStep(static_cast<int64_t>(batches.size()));
    double loss = 0;
    for (size_t m = 0; m < batches.size(); ++m) {
      StepContext context(batches[m], {.loss_scale = 1.0 / static_cast<double>(num_tokens)});
      MF_EXPECT_OK(stage.Forward(static_cast<int64_t>(m), context));
      MF_EXPECT_OK(stage.Backward(static_cast<int64_t>(m)));
      loss += ToVector<double>(stage.loss(static_cast<int64_t>(m)))[0];
    }
    return loss;
  }

  // Copies of all gradients, by parameter.
  std::vector<std::pair<std::string, Tensor>> Gradients() {
    std::vector<std::pair<std::string, Tensor>> gradients;
    model_->VisitParameters([&](Parameter& parameter) {
      if (!parameter.trained) return;
      const Tensor& grad = parameter.value.grad().tensor();
      gradients.emplace_back(parameter.name, testing::WithPadding(grad, testing::Padding::kNone));
    });
    return gradients;
  }

  testing::ScopedTestContext context_;
  std::unique_ptr<LayerStack> model_;
};

TEST_F(StageTest, SumsMicroBatchesToTheGradientOfTheWholeBatch) {
  // The same 12 tokens as one batch of three documents, and as three micro-batches.
  std::vector<PackedBatch> parts = {MakeSmallBatch("a", 5), MakeSmallBatch("b", 1),
                                    MakeSmallBatch("c", 6)};
  std::vector<int32_t> tokens, targets;
  for (const PackedBatch& part : parts) {
    for (int32_t id : ToVector<int32_t>(part.tokens)) tokens.push_back(id);
    for (int32_t id : ToVector<int32_t>(part.targets)) targets.push_back(id);
  }
  PackedBatch whole = MakePackedBatch(tokens, targets, {0, 5, 6, 12});
  Stage stage(*model_);
  const double loss = Run(stage, {whole});
  auto expected = Gradients();
  EXPECT_NEAR(Run(stage, parts), loss, 1e-6 * loss);
  auto gradients = Gradients();
  ASSERT_EQ(gradients.size(), expected.size());
  for (size_t i = 0; i < gradients.size(); ++i) {
    // Sums of few f32 terms in another order.
    testing::ExpectClose(gradients[i].second, expected[i].second, 2e-6, gradients[i].first);
  }
  // A second run of the step begins anew and gives the same bits.
  Run(stage, parts);
  auto again = Gradients();
  for (size_t i = 0; i < again.size(); ++i) {
    testing::ExpectBitEqual(again[i].second, gradients[i].second, again[i].first);
  }
}

TEST_F(StageTest, GivesIdleParametersAZeroGradient) {
  Stage stage(*model_);
  Run(stage, {MakeSmallBatch("a", 4), MakeSmallBatch("b", 3)});
  int num_parameters = 0;
  model_->VisitParameters([&](Parameter& parameter) {
    if (!parameter.trained) {
      EXPECT_FALSE(parameter.value.grad().tensor().defined()) << parameter.name;
      return;
    }
    ++num_parameters;
    EXPECT_EQ(parameter.value.grad().contributions(), 2) << parameter.name;
    std::vector<double> grad = ToVector<double>(parameter.value.grad().tensor());
    const bool is_zero = grad == std::vector<double>(grad.size());
    EXPECT_EQ(is_zero, parameter.name == "idle.weight") << parameter.name;
  });
  EXPECT_EQ(num_parameters, 6);
}

TEST_F(StageTest, FiresOnGradOnceAStep) {
  std::vector<std::string> fired;
  model_->VisitParameters([&](Parameter& parameter) {
    const std::string name = parameter.name;
    parameter.value.set_on_grad([&fired, name] { fired.push_back(name); });
  });
  Stage stage(*model_);
  Run(stage, {MakeSmallBatch("a", 4), MakeSmallBatch("b", 3)});
  std::sort(fired.begin(), fired.end());
  EXPECT_EQ(fired, (std::vector<std::string>{"embedding.weight", "head.weight", "hidden.bias",
                                             "hidden.weight", "idle.weight", "norm.weight"}));
}

TEST_F(StageTest, TurnsAnErrorInALayerIntoItsStatusAndGoesOn) {
  auto owned = std::make_unique<FailingLayer>();
  FailingLayer& layer = *owned;
  auto& entries = model_->entries();
  entries.insert(entries.begin() + 2, {"failing", std::move(owned)});
  Stage stage(*model_);
  PackedBatch batch = MakeSmallBatch("a", 4);
  StepContext context(batch, {.loss_scale = 0.25});
  stage.BeginStep(1);
  layer.status = absl::ResourceExhaustedError("[Pool] 'device' is full: 3 of 2 bytes");
  EXPECT_TRUE(FailsWith(stage.Forward(0, context), absl::StatusCode::kResourceExhausted,
                        "[Pool] 'device' is full: 3 of 2 bytes"));
  EXPECT_FALSE(stage.loss(0).defined());
  layer.status = absl::OkStatus();
  const double loss = Run(stage, {batch});
  EXPECT_GT(loss, 0);
}

TEST_F(StageTest, ReportsIdsOutOfRangeAndMissingTargets) {
  Stage stage(*model_);
  stage.BeginStep(1);
  StepContext bad_id(MakePackedBatch({1, kSmallVocab}, {1, 1}, {0, 2}), {});
  EXPECT_TRUE(FailsWith(stage.Forward(0, bad_id), absl::StatusCode::kInvalidArgument, "11"));
  StepContext no_targets(MakePackedBatch({1, 2}, {}, {0, 2}), {});
  EXPECT_TRUE(FailsWith(stage.Forward(0, no_targets), absl::StatusCode::kInvalidArgument,
                        "[Stage] the batch has no targets"));
}

TEST_F(StageTest, ReportsAWeightWrittenBetweenForwardAndBackward) {
  Stage stage(*model_);
  stage.BeginStep(1);
  StepContext context(MakeSmallBatch("a", 4), {});
  MF_ASSERT_OK(stage.Forward(0, context));
  model_->VisitParameters([](Parameter& parameter) { parameter.value.BumpVersion(); });
  EXPECT_TRUE(FailsWith(stage.Backward(0), absl::StatusCode::kFailedPrecondition, "was written"));
}

TEST_F(StageTest, ComputesLossesWithoutAGraph) {
  Stage stage(*model_);
  PackedBatch batch = MakeSmallBatch("a", 4);
  const double loss = Run(stage, {batch});
  ScopedGradMode mode(GradMode::kNoGrad);
  stage.BeginStep(1);
  StepContext context(batch, {.loss_scale = 0.25});
  MF_ASSERT_OK(stage.Forward(0, context));
  EXPECT_EQ(ToVector<double>(stage.loss(0))[0], loss);
}

TEST_F(StageTest, RefusesMisuse) {
  Stage stage(*model_);
  stage.BeginStep(2);
  StepContext context(MakeSmallBatch("a", 4), {});
  EXPECT_DEATH(stage.Backward(1).IgnoreError(), "micro-batch 1 has no graph");
  EXPECT_DEATH(stage.Forward(2, context).IgnoreError(), "micro-batch 2 of 2");
  EXPECT_DEATH(stage.BeginStep(0), "num_micro_batches >= 1|\\(0 against 1\\)");
  MF_ASSERT_OK(stage.Forward(0, context));
  MF_ASSERT_OK(stage.Backward(0));
  EXPECT_DEATH(stage.Backward(0).IgnoreError(), "micro-batch 0 has no graph");
}

TEST(CatchStatusTest, CatchesStatusErrorsOnly) {
  MF_EXPECT_OK(CatchStatus([] {}));
  EXPECT_TRUE(FailsWith(CatchStatus([] { throw StatusError(absl::NotFoundError("[Op] x")); }),
                        absl::StatusCode::kNotFound, "[Op] x"));
  EXPECT_THROW(CatchStatus([] { throw 1; }).IgnoreError(), int);
}

}  // namespace
}  // namespace meshfold::parallel
