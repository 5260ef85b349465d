// Packed documents, through the trainer's path, against Hugging Face running each document by
// itself.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/io/safetensors.h"
#include "gtest/gtest.h"
#include "models/hf_names.h"
#include "parallel/stage.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "train/setup.h"

namespace meshfold::train {
namespace {

class HfPackedTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string Path(const std::string& file) const {
    return absl::StrCat("tests/goldens/hf/", GetParam(), "/", file);
  }
  testing::ScopedTestContext context_;
};

TEST_P(HfPackedTest, LossLogitsAndGradientsAgree) {
  auto golden = SafetensorsFile::Open(Path("packed.safetensors")).value();
  const auto ints = [&](const std::string& name) {
    return ToVector<int32_t>(golden->Read(name).value());
  };
  Config config = ParseConfig("", "packed", {"model.hf=" + Path("hf")}).value();
  absl::StatusOr<BuiltModel> model = BuildModel(config, 0);
  MF_ASSERT_OK(model);
  std::vector<int32_t> targets = ints("targets");
  const auto counted = std::count_if(targets.begin(), targets.end(), [](int t) { return t >= 0; });
  StepContext context(MakePackedBatch(ints("input_ids"), targets, ints("cu_seqlens")),
                      {.loss_scale = 1.0 / static_cast<double>(counted), .want_logits = true});
  parallel::Stage stage(*model->layers);
  stage.BeginStep(1);
  MF_ASSERT_OK(stage.Forward(0, context));
  MF_ASSERT_OK(stage.Backward(0));

  // Two f32 programs that sum in different orders differ by a few 1e-6.
  const auto agrees = [&](const std::string& name, const Tensor& tensor) {
    Tensor expected = golden->Read(name).value();
    EXPECT_LE(testing::RelativeError(ToVector<double>(tensor), ToVector<double>(expected)), 2e-5)
        << name;
  };
  agrees("loss", stage.loss(0));
  agrees("logits", context.logits);
  int gradients = 0;
  model->layers->VisitParameters([&](Parameter& parameter) {
    for (models::HfTensor& part :
         models::HfTensorsOf(model->family, parameter.name, parameter.value.grad().tensor(),
                             models::HfExpertForm::kSplit)) {
      agrees("grad." + part.name, part.view);
      ++gradients;
    }
  });
  EXPECT_GT(gradients, 10);
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfPackedTest, ::testing::Values("llama_gqa", "qwen3_moe_norm_k3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace meshfold::train
