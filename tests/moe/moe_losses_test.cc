// Balance loss, z loss, counts and bias updates of the layer.
#include <gmock/gmock.h>

#include "core/base/check.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using reference::MoeForward;
using reference::MoeProblem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MoeLossesTest : public MoeTest {};

MoeOptions LossOptions() {
  return {.hidden_size = 8,
          .num_experts = 4,
          .top_k = 2,
          .expert_size = 4,
          .aux_loss_coefficient = 1.0,
          .z_loss_coefficient = 0.5};
}

// T tokens that all have the given logits: x is the first unit vector, the gate has them in its
// first column.
MoeProblem SameLogits(MoeOptions options, int64_t num_tokens, const std::vector<double>& logits) {
  options.num_experts = static_cast<int64_t>(logits.size());
  MoeProblem problem = reference::RandomProblem(options, num_tokens, 1);
  problem.tensors.x_TD.assign(static_cast<size_t>(num_tokens * options.hidden_size), 0.0);
  problem.tensors.gate_ED.assign(logits.size() * static_cast<size_t>(options.hidden_size), 0.0);
  for (int64_t t = 0; t < num_tokens; ++t) problem.tensors.x_TD[t * options.hidden_size] = 1;
  for (size_t e = 0; e < logits.size(); ++e) {
    problem.tensors.gate_ED[e * static_cast<size_t>(options.hidden_size)] = logits[e];
  }
  return problem;
}

// Softmax taken once: P = (0.8808, 0.1192). Twice it would be (0.6817, 0.3183).
TEST_F(MoeLossesTest, BalanceLossUsesTheSoftmaxOfTheLogitsOnce) {
  MoeOptions options = LossOptions();
  options.top_k = 1;
  MoeProblem problem = SameLogits(options, 6, {2, 0});
  LayerRun run = RunLayer(*MakeLayer(problem), problem);
  EXPECT_NEAR(run.losses["aux_loss"], 2 * 0.8807970779778823, 1e-6);  // E f_0 P_0, f_0 = 1

  options.top_k = 2;  // f = (1/2, 1/2): E sum f P = 1 whatever P is
  problem = SameLogits(options, 6, {2, 0});
  EXPECT_NEAR(RunLayer(*MakeLayer(problem), problem).losses["aux_loss"], 1.0, 1e-6);
}

TEST_F(MoeLossesTest, ZLossIsTheMeanOfTheSquaredLogSumExp) {
  MoeProblem problem = SameLogits(LossOptions(), 5, {2, 0});
  double lse = std::log(std::exp(2.0) + 1);
  EXPECT_NEAR(RunLayer(*MakeLayer(problem), problem).losses["z_loss"], 0.5 * lse * lse, 1e-6);
}

// A float64 implementation's value for 5 tokens, 8 experts, top-3.
TEST_F(MoeLossesTest, BalanceLossMatchesTheGolden) {
  MoeOptions options = LossOptions();
  options.hidden_size = 5;
  options.num_experts = 8;
  options.top_k = 3;
  MoeProblem problem = reference::RandomProblem(options, 5, 1);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t d = 0; d < 5; ++d) problem.tensors.x_TD[t * 5 + d] = t == d ? 1 : 0;
    for (int64_t e = 0; e < 8; ++e) {
      problem.tensors.gate_ED[e * 5 + t] = 2 * std::sin(1.3 * (t * 8 + e) + 0.2);
    }
  }
  LayerRun run = RunLayer(*MakeLayer(problem), problem);
  EXPECT_NEAR(run.losses["aux_loss"], 1.028153116297, 1e-6);
}

// With no other gradient, the gate's is that of the losses: dz = p (c - sum p c), dgate = dz x.
TEST_F(MoeLossesTest, BalanceLossAloneReachesTheGate) {
  MoeOptions options = LossOptions();
  options.top_k = 1;
  options.aux_loss_coefficient = 0.3;
  options.z_loss_coefficient = 0;
  MoeProblem problem = SameLogits(options, 4, {1.0, 0.5, 0.0, -1.0});
  std::vector<double> p, exps = {std::exp(1.0), std::exp(0.5), 1.0, std::exp(-1.0)};
  double sum = exps[0] + exps[1] + exps[2] + exps[3];
  for (double value : exps) p.push_back(value / sum);
  LayerRun run = RunLayer(*MakeLayer(problem), problem);
  const std::vector<double>& gate = run.grads["moe.gate.weight"];
  for (size_t e = 0; e < 4; ++e) {  // c = (0.3 * 4, 0, 0, 0) per token mean
    double dz = p[e] * ((e == 0 ? 1.2 : 0.0) - 1.2 * p[0]);
    EXPECT_NEAR(gate[e * 8], dz, 1e-6) << "expert " << e;
  }
  EXPECT_GT(std::abs(gate[0]), 0.1);
}

TEST_F(MoeLossesTest, PaddingChangesNothing) {
  for (const char* router : {"softmax_top_k", "sigmoid_group_bias"}) {
    MoeOptions options = LossOptions();
    options.router = router;
    options.capacity_factor = 0.7;
    if (options.router == "sigmoid_group_bias") options.bias_update_rate = 0.25;
    MoeProblem padded = reference::RandomProblem(options, 16, 5);
    padded.valid_T.assign(16, 0);
    std::fill(padded.valid_T.begin(), padded.valid_T.begin() + 6, 1);
    MoeProblem alone = padded;
    alone.num_tokens = 6;
    alone.valid_T.clear();
    alone.tensors.x_TD.resize(6 * 8);
    ASSERT_GT(reference::Forward(padded).min_gap, 1e-4);

    std::unique_ptr<MoeLayer> layers[2] = {MakeLayer(alone), MakeLayer(padded)};
    LayerRun runs[2] = {RunLayer(*layers[0], alone), RunLayer(*layers[1], padded)};
    for (const char* loss : {"aux_loss", "z_loss"}) {  // another number of rows in the gate's GEMM
      EXPECT_NEAR(runs[1].losses[loss], runs[0].losses[loss], 1e-6 * runs[0].losses[loss]) << loss;
      EXPECT_GT(runs[0].losses[loss], 0.0);
    }
    EXPECT_EQ(runs[0].routed(), runs[1].routed());
    EXPECT_EQ(runs[0].kept(), runs[1].kept());
    EXPECT_NE(runs[0].routed(), runs[0].kept()) << "capacity did not bite";
    ExpectClose(runs[1].grads["moe.gate.weight"], runs[0].grads["moe.gate.weight"]);
    std::vector<float> biases[2];
    for (int i = 0; i < 2; ++i) {
      std::vector<std::unique_ptr<StepContext>> contexts;
      contexts.push_back(std::move(runs[i].context));
      layers[i]->OnStepEnd(contexts);
      layers[i]->VisitParameters([&](Parameter& parameter) {
        if (!parameter.trained) biases[i] = ToVector<float>(parameter.value.data());
      });
    }
    EXPECT_EQ(biases[0], biases[1]);
    EXPECT_EQ(biases[0].size(), options.bias_update_rate > 0 ? 4u : 0u);
  }
}

TEST_F(MoeLossesTest, BiasMovesByTheLoadOfAllMicroBatches) {
  MoeOptions options = LossOptions();
  options.router = "sigmoid_group_bias";
  options.top_k = 1;
  options.bias_update_rate = 0.5;
  MoeProblem first = SameLogits(options, 3, {2, 0, 0, 0});   // 3 rows for expert 0
  MoeProblem second = SameLogits(options, 1, {0, 2, 0, 0});  // 1 row for expert 1: at the mean
  first.bias_E = second.bias_E = {0.125, 0, 0, 0};
  std::unique_ptr<MoeLayer> layer = MakeLayer(first);
  std::vector<std::unique_ptr<StepContext>> contexts;
  contexts.push_back(RunLayer(*layer, first).context);
  layer->router().VisitParameters([&](Parameter& parameter) {
    if (parameter.trained)
      parameter.value.SetData(testing::MakeTensor(second.tensors.gate_ED, parameter.shape));
  });
  contexts.push_back(RunLayer(*layer, second).context);
  // Counts of other layers in the same contexts are not this layer's.
  contexts[0]->AddExpertCounts(
      {.layer = "another", .routed = TensorFromVector<int32_t>({0, 0, 9, 9}, {4})});
  layer->OnStepEnd(contexts);
  layer->router().VisitParameters([&](Parameter& parameter) {
    if (parameter.trained) return;
    EXPECT_THAT(ToVector<float>(parameter.value.data()),
                ElementsAre(0.125f - 0.5f, 0.0f, 0.5f, 0.5f));
  });
}

// Another rank that had `others` rows.
class FakeExchange : public CountExchange {
 public:
  explicit FakeExchange(std::vector<int64_t> others) : others_(std::move(others)) {}
  SharedCounts Share(const std::vector<int64_t>& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = SumOverRanks(routed_E)};
  }
  std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) override {
    for (size_t e = 0; e < load_E.size(); ++e) load_E[e] += others_[e];
    return load_E;
  }

 private:
  std::vector<int64_t> others_;
};

// Tokens [begin, end) of a problem, weighted by their part of it.
MoeProblem Slice(const MoeProblem& whole, int64_t begin, int64_t end) {
  int64_t d = whole.options.hidden_size;
  MoeProblem part = whole;
  part.num_tokens = end - begin;
  part.tensors.x_TD.assign(whole.tensors.x_TD.begin() + begin * d,
                           whole.tensors.x_TD.begin() + end * d);
  part.token_weight = static_cast<double>(end - begin) / static_cast<double>(whole.num_tokens);
  return part;
}

// Two ranks with unequal parts of one micro-batch: losses and gate gradients add up to one rank's.
TEST_F(MoeLossesTest, PartsOfAMicroBatchAddUpToTheWhole) {
  MoeProblem whole = reference::RandomProblem(LossOptions(), 12, 7);
  ASSERT_GT(reference::Forward(whole).min_gap, 1e-4);
  MoeProblem parts[2] = {Slice(whole, 0, 5), Slice(whole, 5, 12)};
  std::map<std::string, double> losses;
  std::vector<double> gate_ED(whole.tensors.gate_ED.size(), 0.0);
  for (int i = 0; i < 2; ++i) {
    std::unique_ptr<MoeLayer> layer = MakeLayer(parts[i]);
    layer->set_count_exchange(
        std::make_unique<FakeExchange>(reference::Forward(parts[1 - i]).routed_E));
    LayerRun run = RunLayer(*layer, parts[i]);
    for (const auto& [name, value] : run.losses) losses[name] += value;
    for (size_t j = 0; j < gate_ED.size(); ++j) gate_ED[j] += run.grads["moe.gate.weight"][j];
  }
  LayerRun run = RunLayer(*MakeLayer(whole), whole);
  EXPECT_NEAR(losses["aux_loss"], run.losses["aux_loss"], 1e-6);
  EXPECT_NEAR(losses["z_loss"], run.losses["z_loss"], 1e-6);
  ExpectClose(gate_ED, run.grads["moe.gate.weight"]);
}

TEST_F(MoeLossesTest, BiasMovesByTheLoadOfAllRanks) {
  MoeOptions options = LossOptions();
  options.router = "sigmoid_group_bias";
  options.top_k = 1;
  options.bias_update_rate = 0.5;
  MoeProblem problem = SameLogits(options, 3, {2, 0, 0, 0});
  problem.bias_E.assign(4, 0.0);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  layer->set_count_exchange(std::make_unique<FakeExchange>(std::vector<int64_t>{0, 9, 3, 0}));
  std::vector<std::unique_ptr<StepContext>> contexts;
  contexts.push_back(RunLayer(*layer, problem).context);
  layer->OnStepEnd(contexts);  // loads 3, 9, 3, 0
  layer->router().VisitParameters([&](Parameter& parameter) {
    if (parameter.trained) return;
    EXPECT_THAT(ToVector<float>(parameter.value.data()), ElementsAre(0.5f, -0.5f, 0.5f, 0.5f));
  });
}

TEST_F(MoeLossesTest, CapacityOverSeveralRanksIsRefused) {
  MoeOptions options = LossOptions();
  options.capacity_factor = 1.0;
  MoeProblem problem = reference::RandomProblem(options, 4, 1);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  layer->set_count_exchange(std::make_unique<FakeExchange>(std::vector<int64_t>{1, 1, 0, 0}));
  try {
    RunLayer(*layer, problem);
    FAIL() << "accepted";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(error.what(), HasSubstr("moe: capacity_factor 1"));
  }
}

TEST_F(MoeLossesTest, RecomputingCountsNothingTwice) {
  MoeProblem problem = reference::RandomProblem(LossOptions(), 4, 1);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  std::unique_ptr<StepContext> context = MakeContext(problem);
  Variable x_TD(testing::MakeTensor(problem.tensors.x_TD, {4, 8}));
  (*layer)(x_TD, *context);
  context->set_recomputing(true);
  (*layer)(x_TD, *context);
  EXPECT_EQ(context->expert_counts().size(), 1u);
  EXPECT_EQ(context->attached_losses().size(), 2u);
}

}  // namespace
}  // namespace meshfold::moe
