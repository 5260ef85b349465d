#include "tests/train/rank_runs.h"

#include <cmath>
#include <limits>

#include "absl/strings/strip.h"
#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "gmock/gmock.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::train {
namespace {

void AddState(Trainer& trainer, const std::string& prefix, WholeState& state) {
  std::map<std::string, Parameter*> parameters;
  trainer.model().layers->VisitParameters([&](Parameter& p) { parameters[p.name] = &p; });
  const auto add = [&](const std::string& name, const Parameter& p, const Tensor& tensor) {
    if (name.rfind(prefix, 0) == 0) state.Add(name, p.shape, p.part, tensor);
  };
  for (const auto& [name, p] : parameters) add("model/" + name, *p, p->value.data());
  trainer.optimizer().VisitState([&](const std::string& name, const Tensor& tensor) {
    // "m/<parameter>"
    add("optimizer/" + name, *parameters.at(name.substr(name.find('/') + 1)), tensor);
  });
}

void ExpectSameMetrics(const StepMetrics& a, const StepMetrics& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-5 * b.loss);
  EXPECT_NEAR(a.aux_loss, b.aux_loss, 1e-5 * b.aux_loss);
  EXPECT_NEAR(a.z_loss, b.z_loss, 1e-5 * b.z_loss);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * b.grad_norm);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.dropped_tokens, b.dropped_tokens);
  EXPECT_DOUBLE_EQ(a.load_max_over_mean, b.load_max_over_mean);
}

}  // namespace

double RelativeError(const Tensor& a, const Tensor& b) {
  const std::vector<float> x = ToVector<float>(a), y = ToVector<float>(b);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += std::pow(double{x[i]} - y[i], 2);
    norm += std::pow(double{y[i]}, 2);
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

void ExpectClose(const State& a, const State& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    ASSERT_EQ(tensor.shape(), b.at(name).shape()) << name;
    EXPECT_LE(RelativeError(tensor, b.at(name)), tolerance) << name;
  }
}

void WholeState::Add(const std::string& name, const Shape& shape, const Box& part,
                     const Tensor& tensor) {
  const Tensor copy = testing::WithPadding(tensor, testing::Padding::kNone);
  std::lock_guard<std::mutex> lock(mutex_);
  Whole& whole = wholes_[name];
  if (!whole.tensor.defined()) {
    whole.tensor = TensorFromVector(std::vector<float>(static_cast<size_t>(shape.numel()),
                                                       std::numeric_limits<float>::quiet_NaN()),
                                    shape);
    whole.missing = shape.numel();
  }
  const auto [place, added] = whole.parts.emplace(part.ToString(), copy);
  if (!added) {
    testing::ExpectBitEqual(copy, place->second, name + part.ToString());
    return;
  }
  ASSERT_EQ(copy.shape(), part.shape()) << name;
  CopyIntoWhole(copy, part, whole.tensor);
  whole.missing -= copy.numel();
}

State WholeState::Take() {
  State state;
  for (auto& [name, whole] : wholes_) {
    EXPECT_EQ(whole.missing, 0) << name;
    state[name] = whole.tensor;
  }
  return state;
}

void RankRunsTest::AddWholeState(Trainer& trainer, WholeState& state) {
  AddState(trainer, "", state);
}

void RankRunsTest::OnRanks(int size, const std::function<absl::Status(const World&)>& body) {
  const comm::ThreadWorldOptions options = {.size = size, .deadline = absl::Seconds(60)};
  const absl::Status status = comm::RunThreadWorld(options, [&](comm::Communicator& end) {
    const std::shared_ptr<comm::Communicator> borrowed(&end, [](comm::Communicator*) {});
    return body({.communicator = borrowed, .ranks_on_node = size});
  });
  EXPECT_TRUE(status.ok()) << status;
}

std::vector<StepMetrics> RankRunsTest::Train(Trainer& trainer, Collected& collected) {
  std::vector<StepMetrics> steps;
  for (int i = 0; i < kSteps; ++i) {
    steps.push_back(Step(trainer));
    if (i > 0) continue;
    trainer.model().layers->VisitParameters([&](Parameter& p) {
      if (p.trained) collected.gradients.Add(p.name, p.shape, p.part, p.value.grad().tensor());
    });
    AddState(trainer, "optimizer/", collected.moments);
  }
  AddState(trainer, "", collected.state);
  return steps;
}

RunResult RankRunsTest::TrainAlone(const Config& config) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(config);
  Collected collected;
  RunResult result;
  result.steps = Train(*trainer, collected);
  result.gradients = collected.gradients.Take();
  result.moments = collected.moments.Take();
  result.state = collected.state.Take();
  return result;
}

RunResult RankRunsTest::TrainOnRanks(const Config& config, int size) {
  Collected collected;
  std::vector<std::vector<StepMetrics>> steps(static_cast<size_t>(size));
  OnRanks(size, [&](const World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(config, {"none"}, logger_, world));
    steps[static_cast<size_t>(world.communicator->rank())] = Train(*trainer, collected);
    return absl::OkStatus();
  });
  for (const std::vector<StepMetrics>& of_rank : steps) {
    EXPECT_EQ(of_rank.size(), steps[0].size());
    for (size_t i = 0; i < std::min(of_rank.size(), steps[0].size()); ++i) {
      EXPECT_EQ(of_rank[i].loss, steps[0][i].loss);
      EXPECT_EQ(of_rank[i].grad_norm, steps[0][i].grad_norm);
    }
  }
  RunResult result;
  result.steps = steps[0];
  result.gradients = collected.gradients.Take();
  result.moments = collected.moments.Take();
  result.state = collected.state.Take();
  return result;
}

void RankRunsTest::ExpectSame(const Config& config, const RunResult& alone, int size) {
  const RunResult ranks = TrainOnRanks(config, size);
  ASSERT_EQ(ranks.steps.size(), alone.steps.size());
  const bool is_sgd = config.optimizer.name == "sgd";
  for (size_t i = 0; i < alone.steps.size(); ++i) {
    // In later steps Adam has turned rounding of small gradients into whole steps.
    if (i == 0 || is_sgd) ExpectSameMetrics(ranks.steps[i], alone.steps[i]);
  }
  ExpectClose(ranks.gradients, alone.gradients);
  ExpectClose(ranks.moments, alone.moments);
  if (is_sgd) ExpectClose(ranks.state, alone.state);
}

}  // namespace meshfold::train
