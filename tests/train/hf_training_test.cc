// Three steps of the trainer against three steps of torch's AdamW on Hugging Face's model.
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

// Adam turns the rounding of a gradient near zero into a visible step; measured: 1.2e-4 at most.
constexpr double kTolerance = 5e-4;
constexpr char kCase[] = "tests/goldens/hf/qwen3_moe_mlp_only";

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
  // Norm of the difference over the norm of the golden.
  void ExpectNear(const std::string& prefix, const std::string& parameter, const Tensor& tensor,
                  double tolerance, const models::Family& family) {
    for (models::HfTensor& part :
         models::HfTensorsOf(family, parameter, tensor, models::HfExpertForm::kSplit)) {
      std::string name = absl::StrCat(prefix, part.name);
      ASSERT_TRUE(golden_->Has(name)) << name;
      EXPECT_LE(testing::RelativeError(ToVector<double>(part.view), Golden(name)), tolerance)
          << name;
      ++compared_;
    }
  }

  std::shared_ptr<const SafetensorsFile> golden_ =
      SafetensorsFile::Open(absl::StrCat(kCase, "/train3.safetensors")).value();
  int compared_ = 0;
};

TEST_F(HfTrainingTest, ThreeStepsOfAdamWAgree) {
  absl::StatusOr<Config> config = ParseConfig(
      absl::StrCat("model: {hf: ", kCase, "/hf}\n",
                   "optimizer: {lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1}\n",
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
    ExpectNear(first ? "exp_avg." : "exp_avg_sq.", name.substr(2), tensor, kTolerance, family);
  });
  for (Parameter* parameter : trainer->optimizer().parameters()) {
    ExpectNear("final.", parameter->name, parameter->value.data(), kTolerance, family);
  }
  int golden_tensors = 0;
  for (const std::string& name : golden_->names()) {
    golden_tensors += absl::StartsWith(name, "exp_avg") || absl::StartsWith(name, "final.") ? 1 : 0;
  }
  EXPECT_EQ(compared_, golden_tensors);
}

}  // namespace
}  // namespace meshfold::train
