// Stopping and going on: N steps in one go equal k steps, a checkpoint, a new trainer and N - k
// steps, to the bit. And what a run begins from when it is not told.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "parallel/train_state.h"
#include "tests/testing/expect_close.h"
#include "tests/train/small_run.h"

namespace meshfold::train {
namespace {

constexpr int64_t kSteps = 8;

struct ResumeCase {
  const char* name;
  const char* lines;
  std::vector<std::string> overrides;
};

const ResumeCase kCases[] = {
    {"Dense", "", {}},
    {"Sgd", "", {"optimizer.name=sgd", "optimizer.momentum=0.9"}},
    {"Softmax", kSoftmaxMoe, {}},
    // Accumulation: 4 micro-batches of one sequence.
    {"SoftmaxInFourMicroBatches", kSoftmaxMoe, {"train.micro_batch_size=1"}},
    {"SigmoidBias", kSigmoidMoe, {"train.micro_batch_size=2"}},
    {"Bf16WithMasters", kSoftmaxMoe, {"model.dtype=bf16", "train.micro_batch_size=2"}},
    {"PackedDocuments", kSoftmaxMoe, {"data.packing=document", "data.validation_fraction=0.2"}},
    {"InOrder", "", {"data.shuffle=false"}},
};

class TrainerResumeTest : public SmallRunTest, public ::testing::WithParamInterface<ResumeCase> {
 protected:
  // The numbers of a step that must not depend on where a run was cut.
  struct Record {
    int64_t step;
    double loss, aux_loss, z_loss, grad_norm, lr;
    int64_t tokens, consumed_samples;
    bool operator==(const Record& o) const {
      return step == o.step && loss == o.loss && aux_loss == o.aux_loss && z_loss == o.z_loss &&
             grad_norm == o.grad_norm && lr == o.lr && tokens == o.tokens &&
             consumed_samples == o.consumed_samples;
    }
  };
  static std::vector<Record> Train(Trainer& trainer, int64_t until) {
    std::vector<Record> records;
    while (trainer.step() < until) {
      StepMetrics m = Step(trainer);
      records.push_back({m.step, m.loss, m.aux_loss, m.z_loss, m.grad_norm, m.lr, m.tokens,
                         trainer.loader()->state().consumed_samples});
    }
    return records;
  }
};

TEST_P(TrainerResumeTest, EqualsTheUnbrokenRunToTheBit) {
  Config config = SmallConfig(GetParam().lines, GetParam().overrides);
  std::unique_ptr<Trainer> straight = MakeTrainer(config);
  std::vector<Record> expected = Train(*straight, kSteps);
  // 4 sequences a step, so that step 3 or 4 reaches into the second epoch.
  ASSERT_NEAR(straight->loader()->samples_per_epoch(0), 11, 2);
  for (int64_t k : {1, 3, 5}) {
    std::unique_ptr<Trainer> first = MakeTrainer(config);
    std::vector<Record> records = Train(*first, k);
    std::string checkpoint = first->Save().value();
    std::map<std::string, Tensor> saved = StateOf(*first);
    first.reset();

    std::unique_ptr<Trainer> second = MakeTrainer(config, checkpoint);
    EXPECT_EQ(second->step(), k);
    ExpectEqualStates(StateOf(*second), saved);
    for (const Record& record : Train(*second, kSteps)) records.push_back(record);
    ASSERT_TRUE(records == expected) << "cut after step " << k << ": last losses "
                                     << records.back().loss << " and " << expected.back().loss;
    ExpectEqualStates(StateOf(*second), StateOf(*straight));
  }
}

// Were a moment or the router's bias left out of a checkpoint, equal zeros would hide it.
TEST_P(TrainerResumeTest, StateHasMovedWhenItIsSaved) {
  std::unique_ptr<Trainer> trainer =
      MakeTrainer(SmallConfig(GetParam().lines, GetParam().overrides));
  std::map<std::string, Tensor> before = StateOf(*trainer);
  Train(*trainer, 3);
  for (const auto& [name, tensor] : StateOf(*trainer)) {
    EXPECT_NE(ToVector<double>(tensor), ToVector<double>(before.at(name))) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, TrainerResumeTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

class TrainerStartTest : public SmallRunTest {
 protected:
  std::string Checkpoint(const std::string& name) const { return Path("run/checkpoints/" + name); }
};

TEST_F(TrainerStartTest, AutoWithoutACheckpointStartsAnew) {
  EXPECT_EQ(MakeTrainer(SmallConfig(), "auto")->step(), 0);
  ASSERT_TRUE(MakeDirs(Path("run/checkpoints")).ok());
  EXPECT_EQ(MakeTrainer(SmallConfig(), "auto")->step(), 0);
}

TEST_F(TrainerStartTest, AutoTakesTheNewestAndNoneTakesNothing) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig());
  for (int i = 0; i < 2; ++i) {
    Step(*trainer);
    MF_ASSERT_OK(trainer->Save());
  }
  EXPECT_EQ(MakeTrainer(SmallConfig(), "auto")->step(), 2);
  EXPECT_EQ(MakeTrainer(SmallConfig(), "none")->step(), 0);
}

TEST_F(TrainerStartTest, AutoPassesOverAHalfWrittenCheckpoint) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig());
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  // What kills leave: a directory under its temporary name, and, from a copy by hand, one under the
  // right name whose index never came.
  Put("run/checkpoints/step_00000002.incomplete/shard-00000.safetensors", "half");
  Put("run/checkpoints/step_00000003/shard-00000.safetensors", "half");
  trainer = MakeTrainer(SmallConfig(), "auto");
  EXPECT_EQ(trainer->step(), 1);
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  EXPECT_EQ(MakeTrainer(SmallConfig(), "auto")->step(), 2);
}

// Damage is for the user to decide about: an older checkpoint is not taken in silence.
TEST_F(TrainerStartTest, AutoReportsADamagedNewestCheckpoint) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig());
  for (int i = 0; i < 2; ++i) {
    Step(*trainer);
    MF_ASSERT_OK(trainer->Save());
  }
  std::string shard = Checkpoint("step_00000002/shard-00000.safetensors");
  std::string bytes = ReadFile(shard).value();
  MF_ASSERT_OK(WriteFile(shard, bytes.substr(0, bytes.size() - 4)));
  EXPECT_TRUE(FailsWith(Trainer::Create(SmallConfig(), {"auto"}, logger_),
                        absl::StatusCode::kInvalidArgument, shard));
  EXPECT_EQ(MakeTrainer(SmallConfig(), Checkpoint("step_00000001"))->step(), 1);
}

// What `meshfold convert --to meshfold` writes.
TEST_F(TrainerStartTest, WeightsAloneStartAtStepZeroWithAFreshOptimizer) {
  std::unique_ptr<Trainer> other = MakeTrainer(SmallConfig(kSoftmaxMoe, {"run.seed=5"}));
  Step(*other);
  MF_ASSERT_OK(
      parallel::SaveTrainingState(Path("converted"), *other->model().layers, nullptr, {}, {}));
  MF_ASSERT_OK(logger_.OpenFile(Path("log.txt")));
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig(kSoftmaxMoe), Path("converted"));
  EXPECT_EQ(trainer->step(), 0);
  EXPECT_EQ(trainer->loader()->state().consumed_samples, 0);
  std::map<std::string, Tensor> weights = StateOf(*other);
  for (const auto& [name, tensor] : StateOf(*trainer)) {
    if (absl::StartsWith(name, "model/")) {
      testing::ExpectBitEqual(tensor, weights.at(name), name);
    } else {
      testing::ExpectClose(tensor, std::vector<double>(tensor.numel(), 0.0), 0.0, name);
    }
  }
  EXPECT_THAT(ReadFile(Path("log.txt")).value(),
              ::testing::HasSubstr("starting at step 0 from the weights of " +
                                   Path("converted/step_00000000") + ", with a fresh optimizer\n"));
  // The run then resumes from its own checkpoints like any other.
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  EXPECT_EQ(MakeTrainer(SmallConfig(kSoftmaxMoe), "auto")->step(), 1);
}

TEST_F(TrainerStartTest, RunAndCheckpointsDirectoriesMeanTheirNewest) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig());
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  for (const char* path : {"run", "run/checkpoints", "run/checkpoints/step_00000001"}) {
    EXPECT_EQ(MakeTrainer(SmallConfig(), Path(path))->step(), 1) << path;
  }
}

// Its weights fit, but it computes something else.
TEST_F(TrainerStartTest, AnotherModelWithTheSameWeightsIsWarnedOf) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig(kSoftmaxMoe));
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  MF_ASSERT_OK(logger_.OpenFile(Path("log.txt")));
  MakeTrainer(SmallConfig(kSoftmaxMoe, {"optimizer.lr=0.5", "runtime.threads=2"}), "auto");
  EXPECT_THAT(ReadFile(Path("log.txt")).value(), ::testing::Not(::testing::HasSubstr("differs")));
  MakeTrainer(SmallConfig(kSoftmaxMoe, {"model.rope.theta=5e5", "moe.top_k=1"}), "auto");
  EXPECT_THAT(ReadFile(Path("log.txt")).value(),
              ::testing::HasSubstr("the model differs from the one that the checkpoint was trained "
                                   "as: model.rope.theta 5e+05 (there 10000.0), moe.top_k 1 "
                                   "(there 2)"));
}

TEST_F(TrainerStartTest, OtherDataIsRefused) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig());
  Step(*trainer);
  MF_ASSERT_OK(trainer->Save());
  EXPECT_TRUE(FailsWith(Trainer::Create(SmallConfig("", {"run.seed=5"}), {"auto"}, logger_),
                        absl::StatusCode::kFailedPrecondition, "seed"));
}

TEST_F(TrainerStartTest, AMissingDirectoryIsNamed) {
  EXPECT_TRUE(FailsWith(Trainer::Create(SmallConfig(), {Path("nowhere")}, logger_),
                        absl::StatusCode::kNotFound, Path("nowhere")));
}

}  // namespace
}  // namespace meshfold::train
