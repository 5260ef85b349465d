// Data parallelism changes no number: ranks as threads against one process.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "gmock/gmock.h"
#include "tests/train/small_run.h"

namespace meshfold::train {
namespace {

using State = std::map<std::string, Tensor>;

// The L2 norm of the difference over that of `b`; 0 for two zeros, and, unlike that of
// tests/testing, infinite where `b` alone is zero.
double RelativeError(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = ToVector<float>(a), y = ToVector<float>(b);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(double{x[i]} - y[i], 2);
    norm += std::pow(double{y[i]}, 2);
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

void ExpectClose(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    ASSERT_EQ(tensor.shape(), b.at(name).shape()) << name;
    EXPECT_LE(RelativeError(tensor, b.at(name)), 1e-5) << name;
  }
}

struct Result {
  std::vector<StepMetrics> steps;
  State state;      // weights and moments after the steps
  State gradients;  // of the first step
  State moments;    // of the optimizer after it
};

class DataParallelTest : public SmallRunTest {
 protected:
  Result Train(Trainer& trainer, int num_steps) {
    Result result;
    for (int i = 0; i < num_steps; ++i) {
      result.steps.push_back(Step(trainer));
      if (i > 0) continue;
      trainer.model().layers->VisitParameters([&](Parameter& parameter) {
        if (!parameter.trained) return;
        result.gradients[parameter.name] = TensorFromVector(
            ToVector<float>(parameter.value.grad().tensor()), parameter.value.shape());
      });
      for (auto& [name, tensor] : StateOf(trainer)) {
        if (name.rfind("optimizer/", 0) == 0) result.moments[name] = tensor;
      }
    }
    result.state = StateOf(trainer);
    return result;
  }

  Result TrainAlone(const Config& config) {
    std::unique_ptr<Trainer> trainer = MakeTrainer(config);
    return Train(*trainer, 3);
  }

  // Every rank's result.
  std::vector<Result> TrainOnRanks(const Config& config, int size) {
    std::vector<Result> results(static_cast<size_t>(size));
    OnRanks(size, [&](const World& world) -> absl::Status {
      MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(config, {"none"}, logger_, world));
      results[static_cast<size_t>(world.communicator->rank())] = Train(*trainer, 3);
      return absl::OkStatus();
    });
    return results;
  }

  void OnRanks(int size, const std::function<absl::Status(const World&)>& body) {
    const comm::ThreadWorldOptions options = {.size = size, .deadline = absl::Seconds(60)};
    const absl::Status status = comm::RunThreadWorld(options, [&](comm::Communicator& end) {
      const std::shared_ptr<comm::Communicator> borrowed(&end, [](comm::Communicator*) {});
      return body({.communicator = borrowed, .ranks_on_node = size});
    });
    EXPECT_TRUE(status.ok()) << status;
  }

  void ExpectSame(const Config& config, int size) {
    SCOPED_TRACE(absl::StrCat(config.model.family, " on ", size, " ranks"));
    const Result alone = TrainAlone(config);
    const std::vector<Result> ranks = TrainOnRanks(config, size);
    for (const Result& result : ranks) {
      ASSERT_EQ(result.steps.size(), alone.steps.size());
      for (size_t i = 0; i < alone.steps.size(); ++i) {
        const StepMetrics &a = result.steps[i], &b = alone.steps[i];
        EXPECT_NEAR(a.loss, b.loss, 1e-5 * b.loss);
        EXPECT_NEAR(a.aux_loss, b.aux_loss, 1e-5 * b.aux_loss);
        EXPECT_NEAR(a.z_loss, b.z_loss, 1e-5 * b.z_loss);
        EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * b.grad_norm);
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_DOUBLE_EQ(a.load_max_over_mean, b.load_max_over_mean);
      }
      ExpectClose(result.gradients, alone.gradients);
      ExpectClose(result.state, alone.state);
      // Replicas stay equal, bit for bit: routers above all.
      ExpectEqualStates(result.state, ranks[0].state);
    }
  }
};

constexpr char kSgd[] = "optimizer.name=sgd";

TEST_F(DataParallelTest, EveryFamilyTrainsAsInOneProcess) {
  const std::map<std::string, std::string> moe_of_family = {
      {"llama", ""}, {"mixtral", kSoftmaxMoe}, {"qwen3_moe", kSoftmaxMoe}, {"olmoe", kSoftmaxMoe}};
  for (const auto& [family, moe] : moe_of_family) {
    const Config config = SmallConfig(moe, {"model.family=" + family, kSgd});
    for (int size : {2, 4}) ExpectSame(config, size);
  }
}

TEST_F(DataParallelTest, AdamsMomentsAreThoseOfOneProcess) {
  const Config config = SmallConfig(kSoftmaxMoe);
  const Result alone = TrainAlone(config);
  const std::vector<Result> ranks = TrainOnRanks(config, 2);
  ASSERT_FALSE(alone.moments.empty());
  ExpectClose(ranks[0].gradients, alone.gradients);
  // After one step: in later ones Adam has turned rounding of small gradients into whole steps.
  ExpectClose(ranks[0].moments, alone.moments);
  EXPECT_NEAR(ranks[0].steps[2].loss, alone.steps[2].loss, 1e-5 * alone.steps[2].loss);
  ExpectEqualStates(ranks[0].state, ranks[1].state);
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
  EXPECT_THAT(refusal({"parallel.tensor=2"}, 2), ::testing::HasSubstr("parallel.tensor is 2"));
  EXPECT_THAT(refusal({"parallel.expert=2"}, 2), ::testing::HasSubstr("parallel.expert is 2"));
  EXPECT_THAT(refusal({"parallel.zero.stage=1"}, 2), ::testing::HasSubstr("zero.stage is 1"));
  EXPECT_THAT(refusal({"moe.capacity_factor=1.5"}, 2), ::testing::HasSubstr("capacity_factor 1.5"));
  EXPECT_THAT(refusal({}, 3), ::testing::HasSubstr("3"));  // 4 samples do not divide by 3
}

}  // namespace
}  // namespace meshfold::train
