// Reading batches, and what the reported loss and gradients mean. That they are Hugging Face's is
// tested in hf_parity_test.cc.
#include "train/evaluation.h"

#include <cmath>
#include <map>

#include "core/nn/init.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::train {
namespace {

class EvaluationTest : public ScratchTest {
 protected:
  static Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
    return TensorFromVector(ids, shape);
  }
  absl::StatusOr<EvalBatch> Read(const std::vector<NamedTensor>& tensors) const {
    MF_EXPECT_OK(WriteSafetensors(Path("batch.safetensors"), tensors));
    return ReadEvalBatch(Path("batch.safetensors"), /*vocab_size=*/20);
  }

  static models::ModelConfig SmallMoe() {
    models::ModelConfig config;
    config.vocab_size = 20;
    config.hidden_size = config.moe.expert_size = 12;
    config.num_layers = 2;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 6;
    config.max_position = 8;
    config.moe.num_experts = 4;
    config.moe.top_k = 2;
    config.initializer_range = 0.3;
    return config;
  }
  void Build(const models::ModelConfig& config) {
    family_ = models::FamilyRegistry().Find(config.family).value();
    model_ = models::BuildDecoder(config).value();
    Initialize(*model_, 1);
  }
  absl::StatusOr<EvalResult> Evaluate(const EvalBatch& batch, bool want_tensors) {
    return EvaluateBatch(*model_, family_, batch, want_tensors);
  }
  static std::map<std::string, std::vector<double>> Gradients(const EvalResult& result) {
    std::map<std::string, std::vector<double>> gradients;
    for (const NamedTensor& named : result.tensors) {
      gradients[named.name] = ToVector<double>(named.tensor);
    }
    return gradients;
  }

  testing::ScopedTestContext context_;
  models::Family family_;
  std::unique_ptr<LayerStack> model_;
};

const EvalBatch kBatch = {.batch = 2,
                          .sequence = 4,
                          .input_ids = {1, 7, 3, 9, 15, 2, 2, 19},
                          .labels = {1, 7, -100, 9, 15, 2, 2, 19}};

TEST_F(EvaluationTest, ReadsIdsAndLabels) {
  EvalBatch batch = Read({{"input_ids", Ids({1, 2, 3, 4, 5, 6}, {2, 3})},
                          {"labels", Ids({1, -100, -7, 4, 5, 6}, {2, 3})}})
                        .value();
  EXPECT_EQ(batch.batch, 2);
  EXPECT_EQ(batch.sequence, 3);
  EXPECT_EQ(batch.input_ids, (std::vector<int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(batch.labels, (std::vector<int32_t>{1, -100, -100, 4, 5, 6}));
  batch = Read({{"input_ids", TensorFromVector(std::vector<int32_t>{1, 2}, {1, 2})}}).value();
  EXPECT_EQ(batch.labels, batch.input_ids);
}

TEST_F(EvaluationTest, RefusesWhatIsNoBatch) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(
      FailsWith(Read({{"tokens", Ids({1}, {1, 1})}}), absl::StatusCode::kNotFound, "input_ids"));
  EXPECT_TRUE(FailsWith(Read({{"input_ids", Ids({1, 2}, {2})}}), kInvalid, "[2]"));
  EXPECT_TRUE(FailsWith(Read({{"input_ids", Ids({1, 2, 20}, {1, 3})}}), kInvalid,
                        "holds id 20 at row 0, column 2; the vocabulary has 20"));
  EXPECT_TRUE(FailsWith(Read({{"input_ids", Ids({1, 2, -1, 4}, {2, 2})}}), kInvalid,
                        "holds id -1 at row 1, column 0"));
  EXPECT_TRUE(FailsWith(Read({{"input_ids", Ids({1, 2}, {1, 2})}, {"labels", Ids({1, 2}, {2, 1})}}),
                        kInvalid, "'labels' has shape [2, 1]"));
  EXPECT_TRUE(
      FailsWith(Read({{"input_ids", Ids({1, 2}, {1, 2})}, {"labels", Ids({1, 1 << 20}, {1, 2})}}),
                kInvalid, "'labels' holds id 1048576"));
  EXPECT_TRUE(FailsWith(Read({{"input_ids", Ids({}, {0, 3})}}), kInvalid, "empty"));
  Tensor floats = TensorFromVector(std::vector<float>{1, 2}, {1, 2});
  EXPECT_TRUE(FailsWith(Read({{"input_ids", floats}}), kInvalid, "input_ids"));
}

TEST_F(EvaluationTest, TheLossIsTheSameWithAndWithoutGradients) {
  Build(SmallMoe());
  EvalResult with = Evaluate(kBatch, true).value(), without = Evaluate(kBatch, false).value();
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.tokens, 5);  // 6 pairs of neighbours, one of them not counted
  EXPECT_TRUE(without.tensors.empty());
}

// The derivative along the gradient of a router's weight, by differences.
TEST_F(EvaluationTest, GradientsAreThoseOfTheReportedLoss) {
  models::ModelConfig config = SmallMoe();
  config.moe.aux_loss_coefficient = 2.0;
  config.moe.z_loss_coefficient = 0.5;
  Build(config);
  constexpr char kGate[] = "grad.model.layers.1.mlp.gate.weight";
  std::vector<double> gradient = Gradients(Evaluate(kBatch, true).value()).at(kGate);
  double norm = 0.0;
  for (double g : gradient) norm += g * g;
  norm = std::sqrt(norm);
  absl::Span<float> weight;
  model_->VisitParameters([&](Parameter& parameter) {
    if (absl::StrContains(parameter.name, "layers.1") &&
        absl::StrContains(parameter.name, "gate.")) {
      weight = parameter.value.data().span<float>();
    }
  });
  ASSERT_EQ(weight.size(), gradient.size());
  const double step = 3e-3;
  const auto loss_at = [&](double offset) {
    for (size_t i = 0; i < gradient.size(); ++i) weight[i] += offset * gradient[i] / norm;
    double loss = Evaluate(kBatch, false).value().loss;
    for (size_t i = 0; i < gradient.size(); ++i) weight[i] -= offset * gradient[i] / norm;
    return loss;
  };
  // Losses of about 6 are rounded to 1e-6: 3e-4 of the difference.
  EXPECT_NEAR((loss_at(step) - loss_at(-step)) / (2 * step), norm, 0.01 * norm);
}

TEST_F(EvaluationTest, NothingCountedIsALossOfZeroAndZeroGradients) {
  Build(SmallMoe());
  EvalBatch batch = kBatch;
  batch.labels.assign(8, -100);
  EvalResult result = Evaluate(batch, true).value();
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.tokens, 0);
  for (const auto& [name, values] : Gradients(result)) {
    if (name == "logits") continue;
    for (double value : values) EXPECT_EQ(value, 0.0) << name;
  }
}

TEST_F(EvaluationTest, LongerThanTheModelIsAnError) {
  Build(SmallMoe());
  EvalBatch batch = {.batch = 1, .sequence = 9, .input_ids = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
  batch.labels = batch.input_ids;
  EXPECT_TRUE(FailsWith(Evaluate(batch, false), absl::StatusCode::kInvalidArgument, "8"));
}

}  // namespace
}  // namespace meshfold::train
