// Rules of the layer that need no reference: drops, idle experts, deferred weights, names,
// refusals.
#include <gmock/gmock.h>

#include "core/base/check.h"
#include "core/nn/init.h"
#include "moe/moe_layer.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using reference::MoeProblem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class MoeLayerRulesTest : public MoeTest {};

TEST_F(MoeLayerRulesTest, PaddingAloneTrainsNothingAndLosesNothing) {
  MoeProblem problem = SafeProblem(BaseOptions(), 3, {0, 0, 0});
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun run = RunLayer(*layer, problem, TestGradient(problem));
  EXPECT_THAT(run.y_TD, Each(0.0));
  for (const auto& [name, grad] : run.grads) EXPECT_THAT(grad, Each(0.0)) << name;
  EXPECT_EQ(run.losses["aux_loss"], 0.0);
  EXPECT_EQ(run.losses["z_loss"], 0.0);
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

TEST_F(MoeLayerRulesTest, TokensPastCapacityKeepOnlyTheirResidualPath) {
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
}

TEST_F(MoeLayerRulesTest, CapacityDropsNothingOutsideTraining) {
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
TEST_F(MoeLayerRulesTest, IdleExpertsGetExactlyZeroGradients) {
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

TEST_F(MoeLayerRulesTest, DeferredWeightGradientsAreBitwiseEqual) {
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

TEST_F(MoeLayerRulesTest, SameInputsGiveTheSameBits) {
  MoeProblem problem = SafeProblem(BaseOptions(), 11);
  std::unique_ptr<MoeLayer> layer = MakeLayer(problem);
  LayerRun first = RunLayer(*layer, problem, TestGradient(problem));
  LayerRun second = RunLayer(*layer, problem, TestGradient(problem));
  EXPECT_EQ(first.y_TD, second.y_TD);
  EXPECT_EQ(first.grads, second.grads);
}

TEST_F(MoeLayerRulesTest, NamesAndShapesOfParameters) {
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

TEST_F(MoeLayerRulesTest, ExpertsStartDifferentFromEachOther) {
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

TEST_F(MoeLayerRulesTest, RefusesOptionsThatDoNotFit) {
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

TEST_F(MoeLayerRulesTest, ExpertsRefuseGroupsThatAreNotTheirs) {
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
