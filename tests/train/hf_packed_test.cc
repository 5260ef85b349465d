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

// What stands in one document changes no bit of another: not its logits, and with its own targets
// alone neither its loss nor any gradient.
TEST_P(HfPackedTest, DocumentsLeaveNoTraceInEachOther) {
  auto golden = SafetensorsFile::Open(Path("packed.safetensors")).value();
  std::vector<int32_t> tokens = ToVector<int32_t>(golden->Read("input_ids").value());
  std::vector<int32_t> borders = ToVector<int32_t>(golden->Read("cu_seqlens").value());
  Config config = ParseConfig("", "packed", {"model.hf=" + Path("hf")}).value();
  BuiltModel model = BuildModel(config, 0).value();
  // Targets in the third document only.
  const int32_t begin = borders[2], end = borders[3];
  std::vector<int32_t> targets(tokens.size(), -100);
  for (int32_t t = begin; t + 1 < end; ++t) targets[t] = tokens[t + 1];
  const auto run = [&](const std::vector<int32_t>& ids) {
    StepContext context(MakePackedBatch(ids, targets, borders), {.want_logits = true});
    parallel::Stage stage(*model.layers);
    stage.BeginStep(1);
    MF_EXPECT_OK(stage.Forward(0, context));
    MF_EXPECT_OK(stage.Backward(0));
    std::vector<std::vector<float>> results = {
        ToVector<float>(stage.loss(0)), ToVector<float>(context.logits.Narrow(begin, end - begin))};
    for (Parameter* parameter : ParametersOf(*model.layers)) {
      results.push_back(ToVector<float>(parameter->value.grad().tensor()));
    }
    return results;
  };
  std::vector<std::vector<float>> before = run(tokens);
  tokens[begin - 2] += 1;  // in the first and the second document (of one token),
  tokens[begin - 1] += 1;
  tokens[end] += 1;  // and in the one behind
  std::vector<std::vector<float>> after = run(tokens);
  EXPECT_TRUE(before == after);
  tokens[begin] += 1;
  EXPECT_FALSE(run(tokens) == after);
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfPackedTest, ::testing::Values("llama_gqa", "qwen3_moe_norm_k3"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace meshfold::train
