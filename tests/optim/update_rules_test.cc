// Every registered update rule: hand-computed steps, and what must hold for all of them.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/backend.h"
#include "optim/update_rule.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::optim {
namespace {

using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::Padding;
using testing::RandomTensor;

constexpr double kLr = 0.1;

std::unique_ptr<UpdateRule> MakeRule(const std::string& name, const RuleOptions& options = {}) {
  return UpdateRuleRegistry().Find(name).value()(options).value();
}

// A parameter with its state, as the optimizer holds them.
struct Slot {
  Slot(const UpdateRule& rule, Tensor value, Padding padding = Padding::kNone)
      : param(std::move(value)) {
    for (size_t i = 0; i < rule.state_names().size(); ++i) {
      state.push_back(testing::UnwrittenTensor(param.shape(), DType::kF32, padding));
      CurrentBackend().Fill(0.0, state.back());
    }
  }
  UpdateRule::Update Update(const Tensor& grad, double weight_decay, int64_t step) const {
    UpdateRule::Update update;
    update.param = param;
    update.master = master;
    update.grad = grad;
    update.state = state;
    update.lr = kLr;
    update.weight_decay = weight_decay;
    update.step = step;
    return update;
  }

  Tensor param, master;
  std::vector<Tensor> state;
};

// Three steps from {1, -2} with gradients {0.5, -1}, {-0.25, 2}, {1, 0}, lr 0.1, by pencil and
// paper (Adam: betas 0.9 and 0.95, eps 1e-8, by a f64 calculator).
struct HandComputed {
  std::string rule;
  RuleOptions options;
  double weight_decay;
  std::vector<std::vector<double>> values;  // after each step
};

const std::vector<HandComputed>& Examples() {
  static const auto* examples = new std::vector<HandComputed>{
      {"adamw",
       {},
       0.1,
       {{0.890000002, -1.880000001},
        {0.8542630578558273, -1.897537395809663},
        {0.7808459348967066, -1.9070141217428396}}},
      {"adamw",
       {},
       0.0,
       {{0.900000002, -1.900000001},
        {0.8731630578758274, -1.936337395819663},
        {0.808288565495265, -1.9647894957109362}}},
      {"sgd", {}, 0.1, {{0.94, -1.88}, {0.9556, -2.0612}, {0.846044, -2.040588}}},
      {"sgd", {}, 0.0, {{0.95, -1.9}, {0.975, -2.1}, {0.875, -2.1}}},
      {"sgd", {.momentum = 0.5}, 0.1, {{0.94, -1.88}, {0.9306, -2.0112}, {0.821294, -2.066088}}},
      {"sgd", {.momentum = 0.5}, 0.0, {{0.95, -1.9}, {0.95, -2.05}, {0.85, -2.125}}},
  };
  return *examples;
}

class UpdateRulesTest : public ::testing::Test {
 protected:
  testing::ScopedTestContext context_;
};

TEST_F(UpdateRulesTest, TakeHandComputedSteps) {
  const std::vector<std::vector<double>> kGrads = {{0.5, -1}, {-0.25, 2}, {1, 0}};
  for (const HandComputed& example : Examples()) {
    std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
    Slot slot(*rule, testing::MakeTensor({1, -2}, {2}));
    for (size_t step = 0; step < kGrads.size(); ++step) {
      Tensor grad = testing::MakeTensor(kGrads[step], {2});
      rule->Apply(slot.Update(grad, example.weight_decay, static_cast<int64_t>(step) + 1));
      // A few roundings of f32.
      ExpectClose(slot.param, example.values[step], 3e-7,
                  example.rule + " step " + std::to_string(step + 1));
    }
  }
}

TEST_F(UpdateRulesTest, AllHaveHandComputedSteps) {
  std::set<std::string> covered;
  for (const HandComputed& example : Examples()) covered.insert(example.rule);
  for (const std::string& name : UpdateRuleRegistry().Names()) {
    EXPECT_EQ(covered.count(name), 1u) << "add three steps of '" << name << "' to Examples()";
  }
  EXPECT_GE(covered.size(), 2u);
}

// f64 references of whole tensors; a rule without one is checked by its three steps alone.
using Reference = std::function<void(const RuleOptions&, double decay, int64_t step,
                                     const std::vector<double>& grad, std::vector<double>& param,
                                     std::vector<std::vector<double>>& state)>;

void AdamWReference(const RuleOptions& options, double decay, int64_t step,
                    const std::vector<double>& grad, std::vector<double>& param,
                    std::vector<std::vector<double>>& state) {
  for (size_t i = 0; i < param.size(); ++i) {
    double &m = state[0][i], &v = state[1][i];
    m = options.beta1 * m + (1 - options.beta1) * grad[i];
    v = options.beta2 * v + (1 - options.beta2) * grad[i] * grad[i];
    const double m_hat = m / (1 - std::pow(options.beta1, static_cast<double>(step)));
    const double v_hat = v / (1 - std::pow(options.beta2, static_cast<double>(step)));
    param[i] -= kLr * decay * param[i];
    param[i] -= kLr * m_hat / (std::sqrt(v_hat) + options.eps);
  }
}

void SgdReference(const RuleOptions& options, double decay, int64_t,
                  const std::vector<double>& grad, std::vector<double>& param,
                  std::vector<std::vector<double>>& state) {
  for (size_t i = 0; i < param.size(); ++i) {
    double step = grad[i];
    if (!state.empty()) step = state[0][i] = options.momentum * state[0][i] + grad[i];
    param[i] -= kLr * decay * param[i];
    param[i] -= kLr * step;
  }
}

TEST_F(UpdateRulesTest, MatchF64OnLargePaddedTensors) {
  const std::map<std::string, Reference> references = {{"adamw", AdamWReference},
                                                       {"sgd", SgdReference}};
  const Shape shape{37, 131};
  for (const HandComputed& example : Examples()) {
    std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
    auto reference = references.find(example.rule);
    if (reference == references.end()) continue;
    Slot slot(*rule, RandomTensor("p", shape, {.padding = Padding::kGuarded}), Padding::kGuarded);
    std::vector<double> param = ToVector<double>(slot.param);
    std::vector<std::vector<double>> state(slot.state.size(), std::vector<double>(param.size()));
    for (int64_t step = 1; step <= 3; ++step) {
      Tensor grad = RandomTensor("g" + std::to_string(step), shape, {.padding = Padding::kGuarded});
      rule->Apply(slot.Update(grad, example.weight_decay, step));
      reference->second(example.options, example.weight_decay, step, ToVector<double>(grad), param,
                        state);
    }
    ExpectClose(slot.param, param, 1e-6, example.rule);
    for (size_t s = 0; s < state.size(); ++s) ExpectClose(slot.state[s], state[s], 1e-6);
  }
}

TEST_F(UpdateRulesTest, NameTheirState) {
  for (const HandComputed& example : Examples()) {
    std::set<std::string> names;
    for (const std::string& name : MakeRule(example.rule, example.options)->state_names()) {
      EXPECT_TRUE(names.insert(name).second) << example.rule << " names '" << name << "' twice";
      EXPECT_TRUE(!name.empty() && name.find('/') == std::string::npos && name != "master") << name;
    }
  }
  EXPECT_EQ(MakeRule("adamw")->state_names(), (std::vector<std::string>{"m", "v"}));
  EXPECT_EQ(MakeRule("sgd")->state_names(), std::vector<std::string>());
  EXPECT_EQ(MakeRule("sgd", {.momentum = 0.9})->state_names(),
            std::vector<std::string>{"momentum"});
}

TEST_F(UpdateRulesTest, StayFiniteFromZeroStateAndStandStillWithoutGradientAndDecay) {
  for (const HandComputed& example : Examples()) {
    std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
    const Tensor start = testing::MakeTensor({1, -2, 0, 1e-20, 3e4, 0}, {6});
    Slot slot(*rule, testing::WithPadding(start, Padding::kNone));
    Tensor zero = testing::MakeTensor(std::vector<double>(6), {6});
    rule->Apply(slot.Update(zero, 0.0, 1));
    ExpectBitEqual(slot.param, start, example.rule + " without gradient");
    rule->Apply(slot.Update(testing::MakeTensor({0, 1e-20, -1e-8, 1, -1e4, 1e10}, {6}), 0.1, 1));
    for (double value : ToVector<double>(slot.param)) {
      EXPECT_TRUE(std::isfinite(value)) << example.rule;
    }
  }
}

TEST_F(UpdateRulesTest, ScaleTheGradientFirst) {
  for (const HandComputed& example : Examples()) {
    std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
    Slot scaled(*rule, RandomTensor("p", {50})), plain(*rule, RandomTensor("p", {50}));
    Tensor grad = RandomTensor("g", {50}), quarter = testing::UnwrittenTensor({50});
    CurrentBackend().Scale(0.25, grad, quarter);
    for (int64_t step = 1; step <= 2; ++step) {
      UpdateRule::Update update = scaled.Update(grad, example.weight_decay, step);
      update.grad_scale = testing::MakeTensor({0.25}, {1});
      rule->Apply(update);
      rule->Apply(plain.Update(quarter, example.weight_decay, step));
    }
    // A power of two scales without rounding.
    ExpectBitEqual(scaled.param, plain.param, example.rule);
  }
}

// What ZeRO needs of rules that say kElementwise: a flat part of a tensor moves as it does inside
// the whole, whatever the rows are.
TEST_F(UpdateRulesTest, MovePartsOfATensorAsTheWhole) {
  for (const HandComputed& example : Examples()) {
    std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
    if (rule->needs() != UpdateRule::Needs::kElementwise) continue;
    Slot whole(*rule, RandomTensor("p", {9, 33}, {.padding = Padding::kGuarded}),
               Padding::kGuarded);
    Slot flat(*rule, RandomTensor("p", {297}));
    for (int64_t step = 1; step <= 3; ++step) {
      Tensor grad = RandomTensor("g", {9, 33}, {.padding = Padding::kGuarded});
      Tensor flat_grad = RandomTensor("g", {297});
      rule->Apply(whole.Update(grad, example.weight_decay, step));
      for (auto [begin, count] : {std::pair<int64_t, int64_t>{0, 101}, {101, 196}}) {
        UpdateRule::Update update =
            flat.Update(flat_grad.Narrow(begin, count), example.weight_decay, step);
        update.param = flat.param.Narrow(begin, count);
        std::vector<Tensor> state;
        for (const Tensor& tensor : flat.state) state.push_back(tensor.Narrow(begin, count));
        update.state = state;
        rule->Apply(update);
      }
    }
    EXPECT_EQ(ToVector<float>(whole.param), ToVector<float>(flat.param)) << example.rule;
    EXPECT_TRUE(testing::GuardIsIntact(whole.param)) << example.rule;
  }
}

TEST_F(UpdateRulesTest, RoundMastersInto16BitParameters) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    for (const HandComputed& example : Examples()) {
      std::unique_ptr<UpdateRule> rule = MakeRule(example.rule, example.options);
      Slot f32(*rule, RandomTensor("p", {7, 20}));
      Slot mixed(*rule, RandomTensor("p", {7, 20}, {.dtype = dtype, .padding = Padding::kGuarded}));
      mixed.master = RandomTensor("p", {7, 20});
      for (int64_t step = 1; step <= 3; ++step) {
        Tensor grad = RandomTensor("g" + std::to_string(step), {7, 20});
        rule->Apply(f32.Update(grad, example.weight_decay, step));
        rule->Apply(mixed.Update(grad, example.weight_decay, step));
      }
      ExpectBitEqual(mixed.master, f32.param, example.rule);
      Tensor rounded = testing::UnwrittenTensor({7, 20}, dtype);
      CurrentBackend().Copy(f32.param, rounded);
      ExpectBitEqual(mixed.param, rounded, example.rule);
    }
  }
}

TEST_F(UpdateRulesTest, RefuseOptionsOutsideTheirRange) {
  auto refusal = [](const std::string& rule, const RuleOptions& options) {
    return std::string(UpdateRuleRegistry().Find(rule).value()(options).status().message());
  };
  EXPECT_EQ(refusal("adamw", {.beta1 = 1}), "[Optimizer] beta1 1 is outside [0, 1)");
  EXPECT_EQ(refusal("adamw", {.beta2 = -0.5}), "[Optimizer] beta2 -0.5 is outside [0, 1)");
  EXPECT_EQ(refusal("adamw", {.beta2 = NAN}), "[Optimizer] beta2 nan is outside [0, 1)");
  EXPECT_EQ(refusal("adamw", {.eps = -1}), "[Optimizer] eps -1 must be 0 or more");
  EXPECT_EQ(refusal("sgd", {.momentum = 1.5}), "[Optimizer] momentum 1.5 is outside [0, 1)");
  EXPECT_EQ(refusal("adamw", {.beta1 = 0, .eps = 0}), "");
  EXPECT_EQ(refusal("sgd", {.beta1 = 7}), "");  // none of its business
}

}  // namespace
}  // namespace meshfold::optim
