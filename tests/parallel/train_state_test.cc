#include "parallel/train_state.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/io/scratch.h"
#include "tests/optim/parameters.h"
#include "tests/parallel/small_model.h"
#include "tests/parallel/training.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::ExpectEqual;
using testing::MakeSmallModel;
using testing::Training;

class TrainStateTest : public ScratchTest {
 protected:
  // Saves `run` and returns the checkpoint's directory.
  std::string Save(Training& run, const CheckpointState& state = {.step = 3}) {
    return SaveTrainingState(Path("root"), *run.model, run.optimizer.get(), state, {}).value();
  }

  testing::ScopedTestContext context_;
};

struct Variant {
  const char* name;
  DType dtype;
  optim::OptimizerOptions options;
};

TEST_F(TrainStateTest, ResumedRunEqualsTheUnbrokenOneToTheBit) {
  const Variant kVariants[] = {
      {"adamw f32", DType::kF32, {.weight_decay = 0.1}},
      {"adamw bf16", DType::kBF16, {.weight_decay = 0.1}},
      {"adamw f16", DType::kF16, {.weight_decay = 0.1}},
      {"sgd", DType::kF32, {.rule = "sgd"}},
      {"momentum bf16", DType::kBF16, {.rule = "sgd", .rule_options = {.momentum = 0.9}}},
  };
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    Training unbroken(variant.dtype, variant.options);
    for (int step = 1; step <= 3; ++step) unbroken.Step(step);
    const auto saved = unbroken.Tensors();
    const std::string path = Save(unbroken);

    Training resumed(variant.dtype, variant.options, /*seed=*/2);
    resumed.Step(9);  // moments of its own, to be overwritten
    absl::StatusOr<CheckpointState> state =
        LoadTrainingState(path, *resumed.model, resumed.optimizer.get());
    MF_ASSERT_OK(state);
    EXPECT_EQ(state->step, 3);
    ExpectEqual(resumed.Tensors(), saved);
    EXPECT_EQ(resumed.optimizer->num_steps(), 3);
    for (int step = 4; step <= 6; ++step) {
      EXPECT_EQ(resumed.Step(step), unbroken.Step(step)) << "step " << step;
    }
    ExpectEqual(resumed.Tensors(), unbroken.Tensors());
  }
}

TEST_F(TrainStateTest, SavesMomentsThatAreNotZero) {
  Training run(DType::kBF16);
  run.Step(1);
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(Save(run));
  MF_ASSERT_OK(checkpoint);
  std::vector<std::string> names;
  for (const auto& [name, info] : checkpoint->tensors()) names.push_back(name);
  const auto tensors = run.Tensors();
  ASSERT_EQ(names.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(checkpoint->tensors().at(name).dtype, tensor.dtype()) << name;
  }
  EXPECT_EQ(tensors.count("model/idle.buffer"), 1u);
  EXPECT_EQ(tensors.count("optimizer/m/idle.buffer"), 0u);
  EXPECT_EQ(tensors.at("optimizer/master/head.weight").dtype(), DType::kF32);
  for (const char* name : {"optimizer/m/hidden.weight", "optimizer/v/embedding.weight"}) {
    std::vector<float> values = ToVector<float>(tensors.at(name));
    EXPECT_NE(values, std::vector<float>(values.size())) << name;
  }
  EXPECT_EQ(checkpoint->state().integers.at("optimizer/num_steps"), 1);
}

TEST_F(TrainStateTest, ReturnsTheStateThatWasSaved) {
  Training run;
  CheckpointState state{5, {{"loader.sample", 40}, {"rng", -1}}, "model: {}\n"};
  const std::string path = Save(run, state);
  for (optim::Optimizer* optimizer :
       {run.optimizer.get(), static_cast<optim::Optimizer*>(nullptr)}) {
    absl::StatusOr<CheckpointState> loaded = LoadTrainingState(path, *run.model, optimizer);
    MF_ASSERT_OK(loaded);
    EXPECT_EQ(loaded->step, 5);
    EXPECT_EQ(loaded->integers, state.integers);
    EXPECT_EQ(loaded->config_yaml, state.config_yaml);
  }
  state.integers["optimizer/x"] = 1;
  EXPECT_TRUE(FailsWith(SaveTrainingState(Path("root"), *run.model, nullptr, state, {}),
                        absl::StatusCode::kInvalidArgument, "'optimizer/x'"));
}

TEST_F(TrainStateTest, RestoresTheCounterAndTheNextUpdate) {
  // Gradient 1 at every step: each Adam update is the learning rate, if the counter is right.
  Training run(DType::kF32, {.rule_options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 0}});
  auto step = [](Training& r) {
    for (Parameter* parameter : r.optimizer->parameters()) {
      Tensor ones = testing::UnwrittenTensor(parameter->shape);
      CurrentBackend().Fill(1.0, ones);
      testing::SetGradient(*parameter, ones);
    }
    r.optimizer->Step(0.125, Tensor());
  };
  step(run);
  step(run);
  const std::string path = Save(run, {.step = 7});  // steps that did nothing count here only
  Training resumed(DType::kF32, {.rule_options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 0}}, 2);
  MF_ASSERT_OK(LoadTrainingState(path, *resumed.model, resumed.optimizer.get()));
  EXPECT_EQ(resumed.optimizer->num_steps(), 2);
  auto before = resumed.Tensors();
  step(resumed);
  auto after = resumed.Tensors();
  const Tensor &was = before.at("model/norm.weight"), &is = after.at("model/norm.weight");
  for (int64_t i = 0; i < was.numel(); ++i) {
    EXPECT_NEAR(was.data<float>()[i] - is.data<float>()[i], 0.125, 1e-6);
  }
}

TEST_F(TrainStateTest, LoadsWeightsAloneIntoAModelWithoutValues) {
  Training run(DType::kBF16);
  run.Step(1);
  const std::string path = Save(run);
  for (DType dtype : {DType::kBF16, DType::kF32}) {
    auto model = MakeSmallModel(dtype);
    MF_ASSERT_OK(LoadTrainingState(path, *model, nullptr));
    auto saved = run.Tensors();
    model->VisitParameters([&](Parameter& parameter) {
      EXPECT_EQ(parameter.value.data().dtype(), parameter.dtype);
      testing::ExpectClose(parameter.value.data(), saved.at("model/" + parameter.name), 0,
                           parameter.name);
    });
  }
}

TEST_F(TrainStateTest, DoesNotResumeFromWeightsAlone) {
  Training run;
  absl::StatusOr<std::string> path =
      SaveTrainingState(Path("root"), *run.model, nullptr, {.step = 1}, {});
  MF_ASSERT_OK(path);
  MF_ASSERT_OK(LoadTrainingState(*path, *run.model, nullptr));
  absl::Status status = LoadTrainingState(*path, *run.model, run.optimizer.get()).status();
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kInvalidArgument,
                        "does not fit this model and optimizer; missing: optimizer/m/"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kInvalidArgument, "and 4 more"));
}

TEST_F(TrainStateTest, StartsFromTheWeightsOfAConvertedModel) {
  Training source;  // f32 weights, of which bf16 training keeps all bits in its masters
  absl::StatusOr<std::string> path =
      SaveTrainingState(Path("root"), *source.model, nullptr, {.step = 0}, {});
  MF_ASSERT_OK(path);
  Training run(DType::kBF16, {.weight_decay = 0.1}, 2);
  run.Step(1);
  MF_ASSERT_OK(LoadTrainingState(*path, *run.model, run.optimizer.get()));
  Training fresh(DType::kBF16, {.weight_decay = 0.1}, 1);
  auto wanted = fresh.Tensors(), weights = source.Tensors();
  for (auto& [name, tensor] : wanted) {
    if (absl::StartsWith(name, "optimizer/master/")) {
      tensor = weights.at("model/" + name.substr(std::strlen("optimizer/master/")));
    }
  }
  ExpectEqual(run.Tensors(), wanted);
  EXPECT_EQ(run.optimizer->num_steps(), 0);
}

TEST_F(TrainStateTest, BumpsVersions) {
  Training run;
  const std::string path = Save(run);
  std::map<std::string, uint64_t> versions;
  run.model->VisitParameters(
      [&](Parameter& parameter) { versions[parameter.name] = parameter.value.version(); });
  MF_ASSERT_OK(LoadTrainingState(path, *run.model, run.optimizer.get()));
  run.model->VisitParameters([&](Parameter& parameter) {
    EXPECT_GT(parameter.value.version(), versions.at(parameter.name)) << parameter.name;
  });
}

TEST_F(TrainStateTest, ListsWhatDoesNotFitAndWritesNothing) {
  Training run;
  const std::string path = Save(run);
  // Another hidden size, a layer more, a layer less, another rule.
  auto other = MakeSmallModel(DType::kF32, 8);
  other->entries()[2] = {
      "extra", std::make_unique<LinearLayer>("extra", LinearLayer::Options{.in = 8, .out = 8})};
  Initialize(*other, 3);
  auto optimizer = optim::Optimizer::Create({.rule = "sgd", .rule_options = {.momentum = 0.9}},
                                            ParametersOf(*other))
                       .value();
  std::vector<Tensor> before;
  for (Parameter* parameter : ParametersOf(*other)) {
    before.push_back(testing::WithPadding(parameter->value.data(), testing::Padding::kNone));
  }
  absl::Status status = LoadTrainingState(path, *other, optimizer.get()).status();
  for (const char* part :
       {"missing: model/extra.weight, optimizer/momentum/embedding.weight",
        "unexpected: model/idle.buffer, model/idle.weight, optimizer/m/embedding.weight",
        "of another shape: model/embedding.weight [11, 6] where [11, 8] is wanted", path.c_str()}) {
    EXPECT_TRUE(FailsWith(status, absl::StatusCode::kInvalidArgument, part));
  }
  EXPECT_EQ(optimizer->num_steps(), 0);
  for (size_t i = 0; i < before.size(); ++i) {
    testing::ExpectBitEqual(ParametersOf(*other)[i]->value.data(), before[i]);
  }
  status = LoadTrainingState(path, *other, nullptr).status();
  EXPECT_TRUE(
      FailsWith(status, absl::StatusCode::kInvalidArgument, "unexpected: model/idle.buffer"));
  EXPECT_FALSE(absl::StrContains(status.message(), "optimizer"));
}

TEST_F(TrainStateTest, ReportsDamageAndAMissingCounter) {
  Training run;
  const std::string path = Save(run), shard = JoinPath(path, "shard-00000.safetensors");
  std::string bytes = ReadFile(shard).value();
  bytes.back() ^= 1;
  MF_ASSERT_OK(WriteFile(shard, bytes));
  EXPECT_TRUE(FailsWith(LoadTrainingState(path, *run.model, run.optimizer.get()),
                        absl::StatusCode::kDataLoss, shard));
  EXPECT_EQ(run.optimizer->num_steps(), 0);
  // All tensors, but not written by SaveTrainingState.
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : run.Tensors()) tensors.push_back({name, tensor});
  absl::StatusOr<std::string> other = SaveCheckpoint(Path("other"), {.step = 1}, tensors, {});
  MF_ASSERT_OK(other);
  EXPECT_TRUE(FailsWith(LoadTrainingState(*other, *run.model, run.optimizer.get()),
                        absl::StatusCode::kInvalidArgument, "optimizer/num_steps"));
}

}  // namespace
}  // namespace meshfold::parallel
