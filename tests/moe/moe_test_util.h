// Shared by the tests of moe/: layers filled from a reference problem, and comparison with it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/nn/step_context.h"
#include "moe/moe_layer.h"
#include "tests/reference/moe/moe_reference.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::moe {

// A CPU context for every case.
class MoeTest : public ::testing::Test {
 protected:
  testing::ScopedTestContext context_;
};

// f32 sums of a few hundred terms stay within 1e-5 of their norm.
inline void ExpectClose(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LE(testing::RelativeError(got, want), 1e-5);
}

// Sets a module's parameters, by what follows the module's name, from the problem.
inline void LoadParameters(MoeLayer& layer, const reference::MoeProblem& problem) {
  const reference::MoeTensors& tensors = problem.tensors;
  std::vector<double> bias_E = problem.bias_E;
  if (bias_E.empty()) bias_E.assign(static_cast<size_t>(layer.options().num_experts), 0.0);
  std::map<std::string, std::vector<double>> values = {
      {"gate.weight", tensors.gate_ED},
      {"gate.score_correction_bias", bias_E},
      {"experts.gate_up", tensors.gate_up_E2FD},
      {"experts.down", tensors.down_EDF},
      {"shared_experts.gate_up.weight", tensors.shared_gate_up_2SD},
      {"shared_experts.down.weight", tensors.shared_down_DS}};
  layer.VisitParameters([&](Parameter& parameter) {
    std::string suffix = parameter.name.substr(layer.name().size() + 1);
    ASSERT_TRUE(values.count(suffix)) << parameter.name;
    parameter.value.SetData(testing::MakeTensor(values[suffix], parameter.shape));
  });
}

inline std::unique_ptr<MoeLayer> MakeLayer(const reference::MoeProblem& problem) {
  auto layer = std::make_unique<MoeLayer>("moe", problem.options);
  LoadParameters(*layer, problem);
  return layer;
}

inline std::unique_ptr<StepContext> MakeContext(const reference::MoeProblem& problem,
                                                bool training = true) {
  PackedBatch batch;
  batch.tokens = TensorFromVector(std::vector<int32_t>(static_cast<size_t>(problem.num_tokens), 0),
                                  {problem.num_tokens});
  if (!problem.valid_T.empty()) {
    batch.valid = TensorFromVector(problem.valid_T, {problem.num_tokens});
    batch.num_padding = problem.num_tokens - problem.num_valid();
  }
  return std::make_unique<StepContext>(
      batch, StepContext::Options{.token_weight = problem.token_weight, .training = training});
}

// A layer with both losses.
inline MoeOptions BaseOptions() {
  return {.hidden_size = 16,
          .num_experts = 8,
          .top_k = 2,
          .expert_size = 12,
          .aux_loss_coefficient = 0.5,
          .z_loss_coefficient = 0.25};
}

// A problem whose routes rounding cannot change, whatever the options do to its scores.
inline reference::MoeProblem SafeProblem(const MoeOptions& options, int64_t num_tokens,
                                         const std::vector<uint8_t>& valid_T = {}) {
  for (uint64_t seed = 1; seed < 50; ++seed) {
    reference::MoeProblem problem = reference::RandomProblem(options, num_tokens, seed);
    problem.valid_T = valid_T;
    if (reference::Forward(problem).min_gap > 1e-4) return problem;
  }
  MF_CHECK(false) << " no seed gives clear routes";
  return {};
}

// What one forward and backward of a layer gave.
struct LayerRun {
  std::unique_ptr<StepContext> context;
  std::vector<double> y_TD;
  std::map<std::string, std::vector<double>> grads;  // "x" and by parameter name
  std::map<std::string, double> losses;              // attached ones

  std::vector<int64_t> routed() const {
    return ToVector<int64_t>(context->expert_counts().at(0).routed);
  }
  std::vector<int64_t> kept() const {
    return ToVector<int64_t>(context->expert_counts().at(0).kept);
  }
};

// Runs `layer` on problem.tensors.x_TD and backward from dy_TD (all zeros when empty).
inline LayerRun RunLayer(MoeLayer& layer, const reference::MoeProblem& problem,
                         std::vector<double> dy_TD = {}, BackwardMode mode = BackwardMode::kFull) {
  Shape shape = {problem.num_tokens, problem.options.hidden_size};
  Variable x_TD = Variable::Leaf(testing::MakeTensor(problem.tensors.x_TD, shape));
  if (dy_TD.empty()) dy_TD.assign(static_cast<size_t>(shape.numel()), 0.0);

  LayerRun run;
  run.context = MakeContext(problem);
  Variable y_TD = layer(x_TD, *run.context);
  run.y_TD = ToVector<double>(y_TD.data());
  BackwardOptions options{.mode = mode, .leaves = {x_TD}};
  std::vector<Parameter*> parameters;
  for (Parameter* parameter : ParametersOf(layer)) {
    if (!parameter->trained) continue;
    parameter->value.grad().Reset();
    options.leaves.push_back(parameter->value);
    parameters.push_back(parameter);
  }
  Backward({Root{y_TD, testing::MakeTensor(dy_TD, shape)}}, options).Run();
  run.grads["x"] = ToVector<double>(x_TD.grad().tensor());
  for (Parameter* parameter : parameters) {
    run.grads[parameter->name] = ToVector<double>(parameter->value.grad().tensor());
  }
  for (const StepContext::AttachedLoss& loss : run.context->attached_losses()) {
    run.losses[loss.name] += ToVector<double>(loss.value)[0];
  }
  return run;
}

// dy that weighs every output differently.
inline std::vector<double> TestGradient(const reference::MoeProblem& problem) {
  return testing::SineSequence(problem.num_tokens * problem.options.hidden_size, 0.7, 0.2);
}

}  // namespace meshfold::moe
