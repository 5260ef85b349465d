// The whole layer against the float64 reference, forward and backward.
#include "moe/moe_layer.h"

#include <gmock/gmock.h>

#include "core/base/check.h"
#include "core/nn/init.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using reference::MoeForward;
using reference::MoeProblem;
using reference::MoeTensors;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class MoeLayerTest : public MoeTest {};

MoeOptions BaseOptions() {
  return {.hidden_size = 16,
          .num_experts = 8,
          .top_k = 2,
          .expert_size = 12,
          .aux_loss_coefficient = 0.5,
          .z_loss_coefficient = 0.25};
}

// A problem whose routes rounding cannot change, whatever the options do to its scores.
MoeProblem SafeProblem(const MoeOptions& options, int64_t num_tokens,
                       const std::vector<uint8_t>& valid_T = {}) {
  for (uint64_t seed = 1; seed < 50; ++seed) {
    MoeProblem problem = reference::RandomProblem(options, num_tokens, seed);
    problem.valid_T = valid_T;
    if (reference::Forward(problem).min_gap > 1e-4) return problem;
  }
  MF_CHECK(false) << " no seed gives clear routes";
  return {};
}

void CheckAgainstReference(const MoeProblem& problem) {
  MoeForward want = reference::Forward(problem);
  ASSERT_GT(want.min_gap, 1e-4) << "rounding could change a route";
  std::vector<double> dy_TD = TestGradient(problem);
  MoeTensors grads = reference::Backward(problem, want, dy_TD);

  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun run = RunLayer(*layer, problem, dy_TD);
  ExpectClose(run.y_TD, want.y_TD);
  EXPECT_EQ(run.routed(), want.routed_E);
  EXPECT_EQ(run.kept(), want.kept_E);
  EXPECT_NEAR(run.losses["aux_loss"], want.aux, 1e-5 * std::abs(want.aux));
  EXPECT_NEAR(run.losses["z_loss"], want.z, 1e-5 * std::abs(want.z));
  const std::pair<const char*, const std::vector<double>*> pairs[] = {
      {"x", &grads.x_TD},
      {"moe.gate.weight", &grads.gate_ED},
      {"moe.experts.gate_up", &grads.gate_up_E2FD},
      {"moe.experts.down", &grads.down_EDF},
      {"moe.shared_experts.gate_up.weight", &grads.shared_gate_up_2SD},
      {"moe.shared_experts.down.weight", &grads.shared_down_DS}};
  for (const auto& [name, values] : pairs) {
    SCOPED_TRACE(name);
    if (!values->empty()) ExpectClose(run.grads.at(name), *values);
  }
  EXPECT_EQ(run.grads.size(), problem.options.num_shared_experts > 0 ? 6u : 4u);
}

TEST_F(MoeLayerTest, SoftmaxMatchesTheReference) {
  for (bool renormalize : {false, true}) {
    for (int64_t top_k : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << "renormalize " << renormalize << " k " << top_k);
      MoeOptions options = BaseOptions();
      options.renormalize = renormalize;
      options.top_k = top_k;
      CheckAgainstReference(SafeProblem(options, 13));
    }
  }
}

TEST_F(MoeLayerTest, SigmoidMatchesTheReference) {
  for (bool renormalize : {false, true}) {
    for (int64_t top_k : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << "renormalize " << renormalize << " k " << top_k);
      MoeOptions options = BaseOptions();
      options.router = "sigmoid_group_bias";
      options.renormalize = renormalize;
      options.routed_scaling = 2.5;
      options.top_k = top_k;
      options.num_groups = top_k == 1 ? 1 : 4;
      options.top_k_groups = top_k == 1 ? 1 : 2;
      CheckAgainstReference(SafeProblem(options, 13));
    }
  }
}

TEST_F(MoeLayerTest, SharedExpertsMatchTheReference) {
  MoeOptions options = BaseOptions();
  options.num_shared_experts = 2;
  CheckAgainstReference(SafeProblem(options, 9));
}

TEST_F(MoeLayerTest, DropsAndPaddingMatchTheReference) {
  MoeOptions options = BaseOptions();
  options.capacity_factor = 0.75;
  options.num_shared_experts = 1;
  MoeProblem problem = SafeProblem(options, 12, {1, 1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0});
  problem.token_weight = 0.375;
  MoeForward forward = reference::Forward(problem);
  ASSERT_NE(forward.routed_E, forward.kept_E) << "nothing was dropped";
  CheckAgainstReference(problem);
}

// Rows of 1 KiB: tensors whose rows do not touch.
TEST_F(MoeLayerTest, PaddedRowsMatchTheReference) {
  MoeOptions options = BaseOptions();
  options.hidden_size = 256;
  options.expert_size = 128;
  options.num_experts = 4;
  options.num_shared_experts = 1;
  CheckAgainstReference(SafeProblem(options, 5));
}

TEST_F(MoeLayerTest, OneTokenAndNoTokenMatchTheReference) {
  for (int64_t num_tokens : {1, 0}) {
    CheckAgainstReference(SafeProblem(BaseOptions(), num_tokens));
  }
}

TEST_F(MoeLayerTest, PaddingAloneTrainsNothingAndLosesNothing) {
  MoeProblem problem = SafeProblem(BaseOptions(), 3, {0, 0, 0});
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun run = RunLayer(*layer, problem, TestGradient(problem));
  EXPECT_THAT(run.y_TD, Each(0.0));
  for (const auto& [name, grad] : run.grads) EXPECT_THAT(grad, Each(0.0)) << name;
  EXPECT_EQ(run.losses["aux_loss"], 0.0);
  EXPECT_EQ(run.losses["z_loss"], 0.0);
}

// A softmax over the one chosen logit would be 1 and teach the gate nothing.
TEST_F(MoeLayerTest, TopOneGateGradientEqualsFiniteDifferences) {
  MoeOptions options = BaseOptions();
  options.num_experts = 4;
  options.top_k = 1;
  options.renormalize = false;
  options.aux_loss_coefficient = options.z_loss_coefficient = 0.0;
  MoeProblem problem = SafeProblem(options, 6);
  std::vector<double> dy_TD = TestGradient(problem);
  auto objective = [&] {
    double value = 0;
    std::vector<double> y_TD = reference::Forward(problem).y_TD;
    for (size_t i = 0; i < y_TD.size(); ++i) value += y_TD[i] * dy_TD[i];
    return value;
  };
  std::vector<double> differences;
  constexpr double kStep = 1e-6;
  for (double& weight : problem.tensors.gate_ED) {
    double kept = weight;
    weight = kept + kStep;
    double above = objective();
    weight = kept - kStep;
    differences.push_back((above - objective()) / (2 * kStep));
    weight = kept;
  }
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun run = RunLayer(*layer, problem, dy_TD);
  double norm = 0;
  for (double value : run.grads["moe.gate.weight"]) norm += value * value;
  EXPECT_GT(std::sqrt(norm), 0.01);
  ExpectClose(run.grads["moe.gate.weight"], differences);
  EXPECT_TRUE(run.losses.empty()) << "losses attached with coefficients 0";
}

// All tokens prefer expert 0: x is positive and so is its gate row.
MoeProblem OneSided(MoeOptions options, int64_t num_tokens) {
  MoeProblem problem = reference::RandomProblem(options, num_tokens, 1);
  for (double& x : problem.tensors.x_TD) x = std::abs(x);
  for (size_t i = 0; i < problem.tensors.gate_ED.size(); ++i) {
    int64_t e = static_cast<int64_t>(i) / options.hidden_size;
    problem.tensors.gate_ED[i] = 0.25 / static_cast<double>(1 + e);
  }
  return problem;
}

TEST_F(MoeLayerTest, TokensPastCapacityKeepOnlyTheirResidualPath) {
  MoeOptions options = BaseOptions();
  options.num_experts = 4;
  options.top_k = 1;
  options.capacity_factor = 3.2;  // ceil(3.2 * 5 / 4) = 4
  MoeProblem problem = OneSided(options, 5);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun run = RunLayer(*layer, problem, TestGradient(problem));
  EXPECT_THAT(run.routed(), ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(run.kept(), ElementsAre(4, 0, 0, 0));
  auto row = [&](int64_t t) {
    return std::vector<double>(run.y_TD.begin() + t * 16, run.y_TD.begin() + (t + 1) * 16);
  };
  EXPECT_THAT(row(4), Each(0.0));
  EXPECT_THAT(row(3), Not(Each(0.0)));
  CheckAgainstReference(problem);
}

TEST_F(MoeLayerTest, CapacityDropsNothingOutsideTraining) {
  MoeOptions options = BaseOptions();
  options.num_experts = 4;
  options.top_k = 1;
  options.capacity_factor = 0.5;
  MoeProblem problem = OneSided(options, 5);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  std::unique_ptr<StepContext> context = MakeContext(problem, /*training=*/false);
  (*layer)(Variable(testing::MakeTensor(problem.tensors.x_TD, {5, 16})), *context);
  EXPECT_THAT(ToVector<int64_t>(context->expert_counts()[0].kept), ElementsAre(5, 0, 0, 0));
  EXPECT_TRUE(context->attached_losses().empty()) << "losses are for training";
}

// Zero, not missing, in every micro-batch: decay and moments of idle experts must go on.
TEST_F(MoeLayerTest, IdleExpertsGetExactlyZeroGradients) {
  MoeOptions options = BaseOptions();
  options.num_experts = 4;
  MoeProblem problem = OneSided(options, 7);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  std::vector<Variable> leaves;
  for (Parameter* parameter : ParametersOf(*layer)) leaves.push_back(parameter->value);
  for (int64_t micro_batch = 0; micro_batch < 2; ++micro_batch) {
    std::unique_ptr<StepContext> context = MakeContext(problem);
    Variable y_TD =
        (*layer)(Variable(testing::MakeTensor(problem.tensors.x_TD, {7, 16})), *context);
    ASSERT_THAT(ToVector<int64_t>(context->expert_counts()[0].routed), ElementsAre(7, 7, 0, 0));
    Backward({Root{y_TD, testing::MakeTensor(TestGradient(problem), {7, 16})}},
             {.micro_batch = micro_batch, .num_micro_batches = 2, .leaves = leaves});
  }
  for (Parameter* parameter : {&layer->experts().gate_up(), &layer->experts().down()}) {
    EXPECT_EQ(parameter->value.grad().contributions(), 2);
    const Tensor& grad = parameter->value.grad().tensor();
    for (int64_t e = 0; e < 4; ++e) {
      std::vector<double> values = ToVector<double>(grad.Select(e));
      if (e < 2) {
        EXPECT_THAT(values, Not(Each(0.0))) << parameter->name << " of expert " << e;
      } else {
        EXPECT_THAT(values, Each(0.0)) << parameter->name << " of expert " << e;
      }
    }
  }
}

TEST_F(MoeLayerTest, DeferredWeightGradientsAreBitwiseEqual) {
  for (const char* router : {"softmax_top_k", "sigmoid_group_bias"}) {
    MoeOptions options = BaseOptions();
    options.router = router;
    options.num_shared_experts = 1;
    options.capacity_factor = 1.0;
    MoeProblem problem = SafeProblem(options, 11);
    std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
    std::vector<double> dy_TD = TestGradient(problem);
    LayerRun full = RunLayer(*layer, problem, dy_TD, BackwardMode::kFull);
    LayerRun split = RunLayer(*layer, problem, dy_TD, BackwardMode::kInputOnly);
    EXPECT_EQ(full.grads, split.grads) << router;
  }
}

TEST_F(MoeLayerTest, SameInputsGiveTheSameBits) {
  MoeProblem problem = SafeProblem(BaseOptions(), 11);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun first = RunLayer(*layer, problem, TestGradient(problem));
  LayerRun second = RunLayer(*layer, problem, TestGradient(problem));
  EXPECT_EQ(first.y_TD, second.y_TD);
  EXPECT_EQ(first.grads, second.grads);
}

TEST_F(MoeLayerTest, NamesAndShapesOfParameters) {
  MoeOptions options = BaseOptions();
  options.router = "sigmoid_group_bias";
  options.num_shared_experts = 2;
  MoeLayer layer("layers.3.moe", options);
  std::map<std::string, std::string> shapes;
  for (Parameter* parameter : ParametersOf(layer)) {
    shapes[parameter->name] = parameter->shape.ToString();
  }
  EXPECT_EQ(shapes, (std::map<std::string, std::string>{
                        {"layers.3.moe.gate.weight", "[8, 16]"},
                        {"layers.3.moe.gate.score_correction_bias", "[8]"},
                        {"layers.3.moe.experts.gate_up", "[8, 2, 12, 16]"},
                        {"layers.3.moe.experts.down", "[8, 16, 12]"},
                        {"layers.3.moe.shared_experts.gate_up.weight", "[2, 24, 16]"},
                        {"layers.3.moe.shared_experts.down.weight", "[16, 24]"}}));
}

TEST_F(MoeLayerTest, ExpertsStartDifferentFromEachOther) {
  MoeLayer layer("moe", BaseOptions());
  Initialize(layer, 1234);
  for (Parameter* parameter : {&layer.experts().gate_up(), &layer.experts().down()}) {
    for (int64_t a = 0; a < 8; ++a) {
      for (int64_t b = 0; b < a; ++b) {
        EXPECT_NE(ToVector<float>(parameter->value.data().Select(a)),
                  ToVector<float>(parameter->value.data().Select(b)));
      }
    }
  }
}

TEST_F(MoeLayerTest, RefusesOptionsThatDoNotFit) {
  auto fault = [](const MoeOptions& options) -> std::string {
    try {
      MoeLayer layer("moe", options);
      return "";
    } catch (const StatusError& error) {
      return error.what();
    }
  };
  MoeOptions options = BaseOptions();
  options.top_k = 9;
  EXPECT_THAT(fault(options), HasSubstr("top_k 9 is more than the 8 experts"));
  options = BaseOptions();
  options.router = "softmax_topk";
  EXPECT_THAT(fault(options), HasSubstr("unknown router 'softmax_topk'; known: "));
  options = BaseOptions();
  options.dispatcher = "remote";
  EXPECT_THAT(fault(options), HasSubstr("unknown dispatcher 'remote'; known: "));
  options = BaseOptions();
  options.planner = "oracle";
  EXPECT_THAT(fault(options), HasSubstr("unknown planner 'oracle'; known: "));
}

TEST_F(MoeLayerTest, ExpertsRefuseGroupsThatAreNotTheirs) {
  RoutedExperts experts("moe", BaseOptions());
  experts.VisitParameters([](Parameter& parameter) { Initialize(parameter, 1); });
  DispatchedRows rows{.x_RD = Variable(Tensor::Empty({0, 16})),
                      .rows = {.offsets = {0, 0, 0}},
                      .weights_R = Variable(Tensor::Empty({0}))};
  try {
    experts.Compute(rows);
    FAIL() << "accepted";
  } catch (const StatusError& error) {
    EXPECT_THAT(error.what(), HasSubstr("2 groups of rows for the 8 experts"));
  }
}

}  // namespace
}  // namespace meshfold::moe
