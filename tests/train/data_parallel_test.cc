// Data parallelism changes no number: ranks as threads against one process.
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "gmock/gmock.h"
#include "tests/train/rank_runs.h"

namespace meshfold::train {
namespace {

using DataParallelTest = RankRunsTest;

constexpr char kSgd[] = "optimizer.name=sgd";

TEST_F(DataParallelTest, EveryFamilyTrainsAsInOneProcess) {
  const std::map<std::string, std::string> moe_of_family = {
      {"llama", ""}, {"mixtral", kSoftmaxMoe}, {"qwen3_moe", kSoftmaxMoe}, {"olmoe", kSoftmaxMoe}};
  for (const auto& [family, moe] : moe_of_family) {
    const Config config = SmallConfig(moe, {"model.family=" + family, kSgd});
    for (int size : {2, 4}) {
      SCOPED_TRACE(absl::StrCat(family, " on ", size, " ranks"));
      ExpectSame(config, size);
    }
  }
}

TEST_F(DataParallelTest, AdamsMomentsAreThoseOfOneProcess) {
  ExpectSame(SmallConfig(kSoftmaxMoe), 2);
}

TEST_F(DataParallelTest, ABalancingBiasMovesByTheLoadOfAllRanks) {
  const Config config = SmallConfig(kSigmoidMoe, {kSgd});
  for (int size : {2, 4}) ExpectSame(config, size);
}

TEST_F(DataParallelTest, MicroBatchesAreCutBeforeTheRanksAre) {
  const Config config = SmallConfig(kSoftmaxMoe, {kSgd, "train.micro_batch_size=2"});
  ExpectSame(config, 2);
}

TEST_F(DataParallelTest, DocumentsOfUnequalLengthsCountByTheirTokens) {
  // Packed by document: the ranks have different numbers of targets.
  const Config config = SmallConfig("", {kSgd, "data.packing=document", "data.document_mask=true"});
  ExpectSame(config, 2);
  ExpectSame(config, 4);
}

TEST_F(DataParallelTest, ValidationIsOfTheWholeSplit) {
  const Config config =
      SmallConfig(kSoftmaxMoe, {"data.validation_fraction=0.3", "data.validation_by=block"});
  std::unique_ptr<Trainer> alone = MakeTrainer(config);
  const absl::StatusOr<ValidationResult> expected = alone->Validate(0);
  ASSERT_TRUE(expected.ok()) << expected.status();
  OnRanks(2, [&](const World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(config, {"none"}, logger_, world));
    MF_ASSIGN_OR_RETURN(const ValidationResult result, trainer->Validate(0));
    EXPECT_NEAR(result.loss, expected->loss, 1e-6 * expected->loss);
    EXPECT_EQ(result.tokens, expected->tokens);
    EXPECT_EQ(result.samples, expected->samples);
    return absl::OkStatus();
  });
}

TEST_F(DataParallelTest, ARunGoesOnWithAnotherNumberOfRanks) {
  const Config config = SmallConfig(kSoftmaxMoe);
  std::unique_ptr<Trainer> straight = MakeTrainer(config);
  std::vector<StepMetrics> expected;
  for (int i = 0; i < 6; ++i) expected.push_back(Step(*straight));

  const auto steps = [&](Trainer& trainer, int first) {
    for (int i = first; i < first + 2; ++i) {
      const StepMetrics metrics = Step(trainer);
      const double loss = expected[static_cast<size_t>(i)].loss;
      EXPECT_EQ(metrics.step, i + 1);
      EXPECT_NEAR(metrics.loss, loss, 1e-4 * loss);
    }
  };
  State saved;
  int first = 0;
  for (int size : {4, 2, 4}) {
    const std::string from = first == 0 ? "none" : "auto";
    OnRanks(size, [&](const World& world) -> absl::Status {
      MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(config, {from}, logger_, world));
      if (first > 0) ExpectEqualStates(StateOf(*trainer), saved);
      EXPECT_EQ(trainer->loader()->state().consumed_samples, 4 * first);
      steps(*trainer, first);
      MF_RETURN_IF_ERROR(trainer->Save().status());
      MF_ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> barrier, world.communicator->Barrier());
      MF_RETURN_IF_ERROR(barrier->HostWait(world.communicator->deadline()));
      if (world.communicator->rank() == 0) saved = StateOf(*trainer);
      return absl::OkStatus();
    });
    first += 2;
  }
}

TEST_F(DataParallelTest, AxesThatAreNotThereAreRefused) {
  const auto refusal = [&](const std::vector<std::string>& overrides, int size) {
    const Config config = SmallConfig(kSoftmaxMoe, overrides);
    absl::Status status;
    OnRanks(size, [&](const World& world) {
      const absl::Status own = Trainer::Create(config, {"none"}, logger_, world).status();
      if (world.communicator->rank() == 0) status = own;
      return absl::OkStatus();
    });
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({"parallel.pipeline=2"}, 2), ::testing::HasSubstr("parallel.pipeline is 2"));
  EXPECT_THAT(refusal({"parallel.zero.stage=1"}, 2), ::testing::HasSubstr("zero.stage is 1"));
  EXPECT_THAT(refusal({}, 3), ::testing::HasSubstr("3"));  // 4 samples do not divide by 3
}

}  // namespace
}  // namespace meshfold::train
