// The whole layer against the float64 reference, forward and backward.
#include "moe/moe_layer.h"

#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using reference::MoeForward;
using reference::MoeProblem;
using reference::MoeTensors;

class MoeLayerTest : public MoeTest {};

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

}  // namespace
}  // namespace meshfold::moe
