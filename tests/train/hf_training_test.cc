// Three steps of the trainer against three steps of torch's AdamW on Hugging Face's model.
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io/safetensors.h"
#include "models/hf_names.h"
#include "tests/testing/expect_close.h"
#include "tests/train/small_run.h"

namespace meshfold::train {
namespace {

// Adam divides by the root of v: where a gradient is near zero its rounding becomes a step of up to
// the learning rate, and from the second step on that moves every gradient a little. Starting from
// weights with their last bits changed at random (23 times) gave, against the golden: moments of a
// tensor off by up to 2.2e-4 of their norm; of the weights at most 1 in 900 off by more than 2e-5
// of its tensor's largest, one by 1.2 learning rates. Tolerances are about five times that.
constexpr double kMomentTolerance = 1e-3;
constexpr double kWeightTolerance = 2e-5;
constexpr double kAmplifiedWeights = 1.0 / 200;
constexpr double kLearningRate = 1e-2;
constexpr char kCase[] = "tests/goldens/hf/qwen3_moe_mlp_only";

using Doubles = std::vector<double>;

class HfTrainingTest : public SmallRunTest {
 protected:
  std::vector<double> Golden(const std::string& name) const {
    return ToVector<double>(golden_->Read(name).value());
  }
  // The batch [B, S] of step `step`: labels are compared with the logits before them.
  GlobalBatch Batch(int64_t step) const {
    Tensor ids = golden_->Read("input_ids").value(), labels = golden_->Read("labels").value();
    const int64_t rows = ids.shape()[1], sequence = ids.shape()[2];
    MicroBatch micro_batch;
    micro_batch.tokens = ToVector<int32_t>(ids.Select(step));
    micro_batch.targets = ToVector<int32_t>(labels.Select(step));
    micro_batch.targets.erase(micro_batch.targets.begin());
    micro_batch.targets.push_back(-100);
    for (int64_t row = 0; row <= rows; ++row) {
      micro_batch.cu_seqlens.push_back(static_cast<int32_t>(row * sequence));
      if (row > 0) micro_batch.targets[static_cast<size_t>(row * sequence - 1)] = -100;
    }
    GlobalBatch batch;
    batch.micro_batches = {micro_batch};
    return batch;
  }
  // Calls compare(name, actual, golden) for each tensor that `parameter` is there.
  template <typename Compare>
  void ForEachPart(const std::string& prefix, const std::string& parameter, const Tensor& tensor,
                   const models::Family& family, const Compare& compare) {
    for (models::HfTensor& part :
         models::HfTensorsOf(family, parameter, tensor, models::HfExpertForm::kSplit)) {
      std::string name = absl::StrCat(prefix, part.name);
      ASSERT_TRUE(golden_->Has(name)) << name;
      compare(name, ToVector<double>(part.view), Golden(name));
      ++compared_;
    }
  }

  std::shared_ptr<const SafetensorsFile> golden_ =
      SafetensorsFile::Open(absl::StrCat(kCase, "/train3.safetensors")).value();
  int compared_ = 0;
};

TEST_F(HfTrainingTest, ThreeStepsOfAdamWAgree) {
  absl::StatusOr<Config> config =
      ParseConfig(absl::StrCat("model: {hf: ", kCase, "/hf}\n", "optimizer: {lr: ", kLearningRate,
                               ", beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1}\n",
                               "schedule: {name: constant}\nruntime: {threads: 1}\n"),
                  "hf.yaml", {});
  MF_ASSERT_OK(config);
  std::unique_ptr<Trainer> trainer = MakeTrainer(*config);
  std::vector<double> losses = Golden("losses"), norms = Golden("grad_norms");
  for (int64_t step = 0; step < 3; ++step) {
    absl::StatusOr<StepMetrics> metrics = trainer->Step(Batch(step));
    MF_ASSERT_OK(metrics);
    EXPECT_NEAR(metrics->loss, losses[step], 2e-5 * losses[step]) << "step " << step + 1;
    EXPECT_NEAR(metrics->grad_norm, norms[step], 1e-4 * norms[step]) << "step " << step + 1;
  }
  const models::Family& family = trainer->model().family;
  trainer->optimizer().VisitState([&](const std::string& name, const Tensor& tensor) {
    const bool first = absl::StartsWith(name, "m/");
    ForEachPart(first ? "exp_avg." : "exp_avg_sq.", name.substr(2), tensor, family,
                [](const std::string& part, const Doubles& actual, const Doubles& golden) {
                  EXPECT_LE(testing::RelativeError(actual, golden), kMomentTolerance) << part;
                });
  });
  size_t weights = 0, off = 0;
  for (Parameter* parameter : trainer->optimizer().parameters()) {
    ForEachPart("final.", parameter->name, parameter->value.data(), family,
                [&](const std::string& part, const Doubles& actual, const Doubles& golden) {
                  double largest = 0.0;
                  for (double value : golden) largest = std::max(largest, std::fabs(value));
                  for (size_t i = 0; i < golden.size(); ++i) {
                    const double difference = std::fabs(actual[i] - golden[i]);
                    off += difference > kWeightTolerance * largest ? 1 : 0;
                    // Two sequences of three steps cannot end further apart.
                    EXPECT_LE(difference, 6 * kLearningRate) << part << "[" << i << "]";
                  }
                  weights += golden.size();
                });
  }
  EXPECT_LE(static_cast<double>(off), kAmplifiedWeights * static_cast<double>(weights))
      << "of " << weights;
  int golden_tensors = 0;
  for (const std::string& name : golden_->names()) {
    golden_tensors += absl::StartsWith(name, "exp_avg") || absl::StartsWith(name, "final.") ? 1 : 0;
  }
  EXPECT_EQ(compared_, golden_tensors);
}

// Rounded logits flip choices of experts, so routers keep the bits of an f32 file in a bf16 run.
TEST_F(HfTrainingTest, RoutersStayF32InABf16Run) {
  Config config = ParseConfig(absl::StrCat("model: {hf: ", kCase, "/hf, dtype: bf16}\n",
                                           "runtime: {threads: 1}\n"),
                              "hf.yaml", {})
                      .value();
  std::unique_ptr<Trainer> trainer = MakeTrainer(config);
  auto file = SafetensorsFile::Open(absl::StrCat(kCase, "/hf/model.safetensors")).value();
  int gates = 0;
  for (Parameter* parameter : trainer->optimizer().parameters()) {
    const bool is_gate = absl::StrContains(parameter->name, ".gate.");
    EXPECT_EQ(parameter->value.data().dtype(), is_gate ? DType::kF32 : DType::kBF16)
        << parameter->name;
    if (parameter->name != "layers.2.moe.gate.weight") continue;
    testing::ExpectBitEqual(parameter->value.data(),
                            file->Read("model.layers.2.mlp.gate.weight").value());
    ++gates;
  }
  EXPECT_EQ(gates, 1);
}

}  // namespace
}  // namespace meshfold::train
