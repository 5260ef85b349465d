// Faults that users of other systems met on several ranks, as small runs with the right answer.
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"
#include "comm/thread_world.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"
#include "gmock/gmock.h"
#include "parallel/sharding.h"
#include "parallel/vocabulary_head.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"
#include "tests/train/rank_runs.h"

namespace meshfold::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ManyRanksCasesTest : public RankRunsTest {
 protected:
  // What rank 0 hears when `size` ranks are set up.
  std::string Refusal(const Config& config, int size) {
    std::string message;
    OnRanks(size, [&](const World& world) {
      const absl::Status own = Trainer::Create(config, {"none"}, logger_, world).status();
      if (world.communicator->rank() == 0) message = std::string(own.message());
      return absl::OkStatus();
    });
    return message;
  }
};

TEST_F(ManyRanksCasesTest, ExpertSizesThatDoNotFitAreRefusedWithBothNumbers) {
  const auto refusal = [&](int expert, int num_experts) {
    return Refusal(SmallConfig(kSoftmaxMoe, {absl::StrCat("parallel.expert=", expert),
                                             absl::StrCat("moe.num_experts=", num_experts),
                                             "train.global_batch_size=8"}),
                   8);
  };
  EXPECT_THAT(refusal(3, 6), AllOf(HasSubstr("expert 3"), HasSubstr("8 ranks")));
  EXPECT_THAT(refusal(4, 6), AllOf(HasSubstr("expert 4"), HasSubstr("num_experts 6")));
  EXPECT_THAT(refusal(16, 16), AllOf(HasSubstr("expert 16"), HasSubstr("8 ranks")));
}

TEST_F(ManyRanksCasesTest, TensorSizesThatDoNotFitAreRefusedWithBothNumbers) {
  const auto refusal = [&](const std::vector<std::string>& keys, int size) {
    return Refusal(SmallConfig("", keys), size);
  };
  EXPECT_THAT(refusal({"parallel.tensor=4", "model.num_heads=6", "model.num_kv_heads=2",
                       "model.head_dim=4"},
                      4),
              HasSubstr("parallel.tensor 4 does not divide the model's 6 attention heads"));
  EXPECT_THAT(refusal({"parallel.tensor=2", "model.num_heads=6", "model.num_kv_heads=3",
                       "model.head_dim=4"},
                      2),
              HasSubstr("parallel.tensor 2 and the model's 3 key/value heads"));
  EXPECT_THAT(refusal({"parallel.tensor=4", "model.num_heads=4", "model.num_kv_heads=2",
                       "model.qk_norm=per_projection", "model.head_dim=4"},
                      4),
              HasSubstr("parallel.tensor 4 is above the model's 2 key/value heads"));
}

// With no target to predict, the balance loss alone must reach the gate, the same on any ranks.
TEST_F(ManyRanksCasesTest, TheBalanceLossReachesTheGateOnAnyNumberOfRanks) {
  const Config config = SmallConfig(kSoftmaxMoe, {"moe.aux_loss=1", "moe.z_loss=0"});
  const auto gate_gradient = [&](Trainer& trainer) {
    GlobalBatch batch = trainer.loader()->Next().value();
    for (MicroBatch& micro_batch : batch.micro_batches) {
      for (int32_t& target : micro_batch.targets) target = kIgnoredTarget;
    }
    const absl::StatusOr<StepMetrics> metrics = trainer.Step(batch);
    EXPECT_TRUE(metrics.ok()) << metrics.status();
    EXPECT_EQ(metrics->lm_loss, 0.0);
    Tensor gradient;
    trainer.model().layers->VisitParameters([&](Parameter& p) {
      if (p.name != "layers.1.moe.gate.weight") return;
      gradient = testing::WithPadding(p.value.grad().tensor(), testing::Padding::kNone);
    });
    return gradient;
  };
  const Tensor alone = gate_gradient(*MakeTrainer(config));
  double norm = 0.0;
  for (double value : ToVector<double>(alone)) norm += value * value;
  EXPECT_GT(std::sqrt(norm), 1e-4);
  for (int size : {2, 4}) {
    OnRanks(size, [&](const World& world) -> absl::Status {
      MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(config, {"none"}, logger_, world));
      EXPECT_LE(RelativeError(gate_gradient(*trainer), alone), 1e-5);
      return absl::OkStatus();
    });
  }
}

// A bias sends every token to the first rank's experts: the other takes part with no rows.
TEST_F(ManyRanksCasesTest, ARankWithoutTokensTakesPart) {
  const Config config = SmallConfig(
      kSigmoidMoe, {"moe.num_groups=1", "moe.bias_update_rate=0", "optimizer.name=sgd"});
  const Config spread = SmallConfig(kSigmoidMoe, {"moe.num_groups=1", "moe.bias_update_rate=0",
                                                  "optimizer.name=sgd", "parallel.expert=2"});
  const auto step = [&](Trainer& trainer, WholeState& gradients) {
    trainer.model().layers->VisitParameters([&](Parameter& p) {
      if (p.name.find("score_correction_bias") == std::string::npos) return;
      for (int64_t e = 0; e < 4; ++e) p.value.data().data<float>()[e] = e < 2 ? 10.0f : 0.0f;
      p.value.BumpVersion();
    });
    const StepMetrics metrics = Step(trainer);
    trainer.model().layers->VisitParameters([&](Parameter& p) {
      if (p.trained) gradients.Add(p.name, p.shape, p.part, p.value.grad().tensor());
    });
    return metrics;
  };
  WholeState of_one, of_two;
  const StepMetrics alone = step(*MakeTrainer(config), of_one);
  EXPECT_DOUBLE_EQ(alone.load_max_over_mean, 2.0);
  OnRanks(2, [&](const World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(spread, {"none"}, logger_, world));
    EXPECT_NEAR(step(*trainer, of_two).loss, alone.loss, 1e-5 * alone.loss);
    return absl::OkStatus();
  });
  const State two = of_two.Take();
  ExpectClose(two, of_one.Take());
  const Tensor down = two.at("layers.0.moe.experts.down");
  for (int64_t e : {2, 3}) {
    for (float value : ToVector<float>(down.Select(e))) ASSERT_EQ(value, 0.0f);
  }
}

// All logits equal: ln 8, not ln 8 + ln of the number of ranks.
TEST_F(ManyRanksCasesTest, AVocabularyOfEqualLogitsCostsItsLogarithm) {
  for (int size : {1, 2, 4, 8}) {
    OnRanks(size, [&](const World& world) -> absl::Status {
      const std::unique_ptr<LossHead> head =
          parallel::MakeVocabularyHead({.vocab_size = 8}, world.communicator);
      StepContext context(MakePackedBatch({0, 0, 0}, {1, 7, -100}, {0, 3}),
                          {.loss_scale = 0.5, .want_logits = true});
      const Tensor weight = testing::MakeTensor(std::vector<double>(16 / size), {8 / size, 2});
      const Tensor x = testing::MakeTensor({1, 2, 3, 4, 5, 6}, {3, 2});
      const Variable loss = head->Compute(Variable(x), Variable(weight), context);
      EXPECT_NEAR(loss.data().data<float>()[0], std::log(8.0), 1e-6);
      EXPECT_EQ(context.logits.shape(), Shape({3, 8}));
      return absl::OkStatus();
    });
  }
}

// One seed, one model, whatever holds its parts; and no two experts alike.
TEST_F(ManyRanksCasesTest, TheSameSeedGivesTheSameWeightsUnderAnyLayout) {
  const std::vector<std::string> keys = {"model.num_heads=4", "model.num_kv_heads=2",
                                         "run.seed=1234"};
  WholeState whole;
  AddWholeState(*MakeTrainer(SmallConfig(kSoftmaxMoe, keys)), whole);
  const State alone = whole.Take();
  const Tensor& experts = alone.at("model/layers.0.moe.experts.gate_up");
  for (int64_t a = 0; a < 4; ++a) {
    for (int64_t b = 0; b < a; ++b) {
      EXPECT_NE(ToVector<float>(experts.Select(a)), ToVector<float>(experts.Select(b)));
    }
  }
  for (const char* layout : {"parallel.expert=2", "parallel.expert=4", "parallel.tensor=2",
                             "parallel.tensor=4", "parallel.expert_tensor=4"}) {
    std::vector<std::string> all = keys;
    all.push_back(layout);
    WholeState parts;
    OnRanks(4, [&](const World& world) -> absl::Status {
      MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                          Trainer::Create(SmallConfig(kSoftmaxMoe, all), {"none"}, logger_, world));
      AddWholeState(*trainer, parts);
      return absl::OkStatus();
    });
    SCOPED_TRACE(layout);
    ExpectEqualStates(parts.Take(), alone);
  }
}

// Expert exchange and gradient reduction in flight on several groups while ranks are late at
// random.
TEST_F(ManyRanksCasesTest, SeveralGroupsInFlightDoNotLockUp) {
  const Config config = SmallConfig(kSoftmaxMoe, {"parallel.expert=2", "model.num_layers=1"});
  std::atomic<uint64_t> operations{0};
  const comm::ThreadWorldOptions options = {
      .size = 4, .deadline = absl::Seconds(60), .before_operation = [&](int rank) {
        const uint64_t at = operations++;
        if (UniformAt(MakeRngKey(static_cast<uint64_t>(rank), "delay"), at) > 0.02) return;
        std::this_thread::sleep_for(std::chrono::microseconds(300));
      }};
  const absl::Status status = comm::RunThreadWorld(options, [&](comm::Communicator& end) {
    const std::shared_ptr<comm::Communicator> borrowed(&end, [](comm::Communicator*) {});
    MF_ASSIGN_OR_RETURN(
        std::unique_ptr<Trainer> trainer,
        Trainer::Create(config, {"none"}, logger_, {.communicator = borrowed, .ranks_on_node = 4}));
    for (int step = 0; step < 500; ++step) MF_RETURN_IF_ERROR(trainer->Step().status());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

// One rank's expert makes a number that is none: all ranks stop at the same step with the same
// sentence, and none waits for the others.
TEST_F(ManyRanksCasesTest, ABrokenNumberOnOneRankStopsAllRanks) {
  const Config config = SmallConfig(kSoftmaxMoe, {"parallel.expert=4", "moe.top_k=4"});
  OnRanks(4, [&](const World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(config, {"none"}, logger_, world));
    MF_RETURN_IF_ERROR(trainer->Step().status());
    if (world.communicator->rank() == 2) {
      trainer->model().layers->VisitParameters([](Parameter& p) {
        if (p.name != "layers.1.moe.experts.down") return;
        p.value.data().data<float>()[0] = std::numeric_limits<float>::infinity();
        p.value.BumpVersion();
      });
    }
    const absl::Status status = trainer->Step().status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("[Step] step 2: loss"));
    return absl::OkStatus();
  });
}

// A step's bytes are the closed forms of what it exchanges, in metrics too.
TEST_F(ManyRanksCasesTest, TrafficIsReportedByGroup) {
  const Config config = SmallConfig("", {"optimizer.name=sgd"});
  OnRanks(2, [&](const World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(config, {"none"}, logger_, world));
    const StepMetrics metrics = Step(*trainer);
    int64_t parameters = 0;
    trainer->model().layers->VisitParameters([&](Parameter& p) { parameters += p.shape.numel(); });
    // Small sums go to every other rank at once; gradients start at multiples of 16 elements.
    EXPECT_GE(metrics.comm_bytes.at("dp"), 4 * parameters);
    EXPECT_LE(metrics.comm_bytes.at("dp"), 4 * parameters + 64 * 40);
    EXPECT_GT(metrics.comm_seconds, 0);
    EXPECT_GT(metrics.exposed_comm_seconds, 0);
    EXPECT_NEAR(metrics.compute_seconds + metrics.exposed_comm_seconds, metrics.step_seconds, 1e-9);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace meshfold::train
