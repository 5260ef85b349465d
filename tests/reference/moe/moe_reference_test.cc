// The reference's gradients against central differences of its forward.
#include "tests/reference/moe/moe_reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace meshfold::reference {
namespace {

moe::MoeOptions SmallOptions() {
  return {.hidden_size = 3,
          .num_experts = 4,
          .top_k = 2,
          .expert_size = 2,
          .aux_loss_coefficient = 0.7,
          .z_loss_coefficient = 0.2};
}

double Objective(const MoeProblem& problem, const std::vector<double>& dy_TD) {
  MoeForward forward = Forward(problem);
  double value = forward.aux + forward.z;
  for (size_t i = 0; i < dy_TD.size(); ++i) value += forward.y_TD[i] * dy_TD[i];
  return value;
}

// Every element of every tensor. The step 1e-5 leaves an error of about 1e-9 in float64.
void CheckGradients(MoeProblem problem) {
  MoeForward forward = Forward(problem);
  ASSERT_GT(forward.min_gap, 1e-3) << "a step could change a route";
  std::vector<double> dy_TD;
  for (size_t i = 0; i < forward.y_TD.size(); ++i) dy_TD.push_back(std::sin(0.7 * i + 0.2));
  MoeTensors grads = Backward(problem, forward, dy_TD);
  std::vector<MoeTensors::Entry> got = grads.entries(), inputs = problem.tensors.entries();
  constexpr double kStep = 1e-5;
  for (size_t n = 0; n < inputs.size(); ++n) {
    for (size_t i = 0; i < inputs[n].values->size(); ++i) {
      double& value = (*inputs[n].values)[i];
      double kept = value;
      value = kept + kStep;
      double above = Objective(problem, dy_TD);
      value = kept - kStep;
      double below = Objective(problem, dy_TD);
      value = kept;
      ASSERT_NEAR((*got[n].values)[i], (above - below) / (2 * kStep), 1e-7)
          << inputs[n].name << " element " << i;
    }
  }
}

TEST(MoeReferenceTest, SoftmaxGradients) {
  for (bool renormalize : {false, true}) {
    for (int64_t k : {1, 2, 3}) {
      moe::MoeOptions options = SmallOptions();
      options.renormalize = renormalize;
      options.top_k = k;
      options.num_shared_experts = 1;
      SCOPED_TRACE(testing::Message() << "renormalize " << renormalize << " k " << k);
      CheckGradients(RandomProblem(options, 5, 1));
    }
  }
}

TEST(MoeReferenceTest, SigmoidGradients) {
  for (bool renormalize : {false, true}) {
    moe::MoeOptions options = SmallOptions();
    options.router = "sigmoid_group_bias";
    options.num_experts = 8;
    options.num_groups = 4;
    options.top_k_groups = 2;
    options.top_k = 3;
    options.renormalize = renormalize;
    options.routed_scaling = 2.5;
    CheckGradients(RandomProblem(options, 5, 2));
  }
}

TEST(MoeReferenceTest, GradientsWithCapacityAndPadding) {
  moe::MoeOptions options = SmallOptions();
  options.capacity_factor = 0.8;
  MoeProblem problem = RandomProblem(options, 6, 3);
  problem.valid_T = {1, 1, 1, 1, 1, 0};
  problem.token_weight = 0.25;
  MoeForward forward = Forward(problem);
  ASSERT_NE(forward.routed_E, forward.kept_E) << "nothing was dropped";
  CheckGradients(problem);
}

}  // namespace
}  // namespace meshfold::reference
