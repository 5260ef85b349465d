// What ends a run, before it starts or in a step, and what a step reports.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "tests/train/small_run.h"

namespace meshfold::train {
namespace {

class TrainerRunTest : public SmallRunTest {
 protected:
  absl::StatusOr<std::unique_ptr<Trainer>> Create(const std::vector<std::string>& overrides) {
    return Trainer::Create(SmallConfig("", overrides), {"none"}, logger_);
  }
};

TEST_F(TrainerRunTest, ACorpusWithoutASampleIsRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  std::string empty = PutTokens("empty.safetensors", {}, {0, 0});
  EXPECT_TRUE(FailsWith(Create({"data.source=" + empty}), kInvalid, empty));
  std::string one = PutTokens("short.safetensors", {1, 2, 3}, {0, 3});
  EXPECT_TRUE(FailsWith(Create({"data.source=" + one}), kInvalid, "sequence length 16"));
  EXPECT_TRUE(FailsWith(Create({"data.source=", "model.vocab_size=0"}), kInvalid, "data.source"));
}

TEST_F(TrainerRunTest, AnIdBeyondTheVocabularyNamesItsPlace) {
  std::vector<int32_t> tokens(40, 1);
  tokens[33] = kSmallVocab;
  std::string path = PutTokens("beyond.safetensors", tokens, {0, 30, 40});
  absl::StatusOr<std::unique_ptr<Trainer>> trainer = Create({"data.source=" + path});
  MF_ASSERT_OK(trainer);
  absl::Status status = (*trainer)->Step().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(
      std::string(status.message()),
      ::testing::AllOf(::testing::HasSubstr(path), ::testing::HasSubstr("id 64 out of range"),
                       ::testing::HasSubstr("token 3 of document 1")));
  EXPECT_EQ((*trainer)->step(), 0);
  EXPECT_EQ((*trainer)->loader()->state().consumed_samples, 0);
}

TEST_F(TrainerRunTest, SequencesLongerThanAHuggingFaceModelAreRefused) {
  std::string longer = PutTokens("long.safetensors", std::vector<int32_t>(600, 1), {0, 600});
  EXPECT_TRUE(FailsWith(Create({"model.hf=tests/goldens/hf/mixtral_gqa/hf",
                                "data.sequence_length=257", "data.source=" + longer}),
                        absl::StatusCode::kInvalidArgument,
                        "data.sequence_length 257 is above the 256 positions"));
}

TEST_F(TrainerRunTest, ALossThatIsNoNumberEndsTheRunAndMovesNoWeight) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig(kSoftmaxMoe));
  trainer->model().layers->VisitParameters([](Parameter& parameter) {
    if (parameter.name == "norm.weight") {
      parameter.value.data().span<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    }
  });
  std::map<std::string, Tensor> before = StateOf(*trainer);
  EXPECT_TRUE(FailsWith(trainer->Step(), absl::StatusCode::kInternal, "step 1: loss nan"));
  EXPECT_EQ(trainer->step(), 0);
  ExpectEqualStates(StateOf(*trainer), before);
}

// A run whose losses are not numbers must not replace its last good checkpoint either.
TEST_F(TrainerRunTest, AFailedStepSavesNothing) {
  std::unique_ptr<Trainer> trainer =
      MakeTrainer(SmallConfig("", {"optimizer.lr=1e30", "checkpoint.interval=1"}));
  EXPECT_FALSE(trainer->Run().ok());
  EXPECT_LT(MakeTrainer(SmallConfig(), "auto")->step(), 8);
}

TEST_F(TrainerRunTest, MicroBatchesSumToTheWholeBatch) {
  std::unique_ptr<Trainer> whole = MakeTrainer(SmallConfig()),
                           parts = MakeTrainer(SmallConfig("", {"train.micro_batch_size=1"}));
  for (int i = 0; i < 3; ++i) {
    StepMetrics a = Step(*whole), b = Step(*parts);
    EXPECT_EQ(a.tokens, b.tokens);
    // Sums in other orders.
    EXPECT_NEAR(a.loss, b.loss, 1e-5 * a.loss);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-4 * a.grad_norm);
  }
}

// The weight of the one expert is its probability among all, so the router learns from the loss.
TEST_F(TrainerRunTest, ATopOneRouterLearnsWithoutAuxiliaryLosses) {
  const std::vector<std::string> plain = {"optimizer.name=sgd", "optimizer.weight_decay=0"};
  constexpr char kTopOne[] = "moe: {num_experts: 4, top_k: 1, expert_size: 8}\n";
  std::unique_ptr<Trainer> trainer = MakeTrainer(SmallConfig(kTopOne, plain));
  std::map<std::string, Tensor> before = StateOf(*trainer);
  Step(*trainer);
  int gates = 0;
  for (const auto& [name, tensor] : StateOf(*trainer)) {
    if (!absl::StrContains(name, ".gate.")) continue;
    EXPECT_NE(ToVector<float>(tensor), ToVector<float>(before.at(name))) << name;
    ++gates;
  }
  EXPECT_EQ(gates, 2);
  MF_ASSERT_OK(logger_.OpenFile(Path("log.txt")));
  EXPECT_EQ(ReadFile(Path("log.txt")).value(), "");
  MakeTrainer(SmallConfig(kTopOne, {"moe.renormalize=true"}));
  EXPECT_THAT(ReadFile(Path("log.txt")).value(),
              ::testing::HasSubstr("teaches the router nothing"));
}

// Dropped tokens, loads and losses are of the whole step, whatever it is cut into.
TEST_F(TrainerRunTest, ReportsExpertLoads) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(
      SmallConfig(kSoftmaxMoe, {"train.micro_batch_size=1", "moe.capacity_factor=0.5"}));
  StepMetrics metrics = Step(*trainer);
  EXPECT_EQ(metrics.tokens, 4 * 16);
  // Two layers send 2 copies of each of 16 tokens a micro-batch, and at most 4 fit each of 4
  // experts.
  EXPECT_GE(metrics.dropped_tokens, 2 * 4 * (2 * 16 - 4 * 4));
  EXPECT_GE(metrics.load_max_over_mean, 1.0);
  EXPECT_LE(metrics.load_min, metrics.load_p50);
  EXPECT_LE(metrics.load_p50, metrics.load_p95);
  EXPECT_GT(metrics.aux_loss, 0.0);
  EXPECT_GT(metrics.z_loss, 0.0);
  EXPECT_NEAR(metrics.loss, metrics.lm_loss + metrics.aux_loss + metrics.z_loss, 1e-12);
}

// Every validation sample counts once, also those of the last, smaller batch.
TEST_F(TrainerRunTest, ValidatesTheWholeSplitAndDisturbsNothing) {
  std::vector<std::string> split = {"data.validation_fraction=0.4", "data.validation_by=block"};
  std::unique_ptr<Trainer> a = MakeTrainer(SmallConfig("", split)),
                           b = MakeTrainer(SmallConfig("", split));
  ValidationResult result = a->Validate(0).value();
  EXPECT_EQ(result.samples, a->loader()->num_validation_samples());
  EXPECT_GT(result.samples % 4, 0);
  // An untrained model: about the logarithm of the vocabulary.
  EXPECT_NEAR(result.loss, std::log(kSmallVocab), 0.2);
  EXPECT_EQ(a->Validate(0).value().loss, result.loss);
  EXPECT_EQ(a->Validate(1).value().samples, 4);
  EXPECT_EQ(Step(*a).loss, Step(*b).loss);
  EXPECT_TRUE(FailsWith(MakeTrainer(SmallConfig())->Validate(0),
                        absl::StatusCode::kFailedPrecondition, "data.validation_fraction"));
}

}  // namespace
}  // namespace meshfold::train
