// Every registered router, then each by itself.
#include <gmock/gmock.h>

#include <set>

#include "core/base/check.h"
#include "core/nn/init.h"
#include "moe/router.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A router whose logits are `logits_TE`: x is the identity matrix, the gate their transpose.
struct Fixture {
  MoeOptions options;
  std::unique_ptr<Router> router;
  std::unique_ptr<StepContext> context;
  Variable x_TD;

  Fixture(MoeOptions options_in, const std::vector<double>& logits_TE, int64_t num_tokens,
          const std::vector<double>& bias_E = {})
      : options(std::move(options_in)) {
    options.hidden_size = num_tokens;
    router = *(*RouterRegistry().Find(options.router))("layer", options);
    reference::MoeProblem batch;
    batch.num_tokens = num_tokens;
    context = MakeContext(batch);
    std::vector<double> identity(static_cast<size_t>(num_tokens * num_tokens), 0.0);
    std::vector<double> gate_ED;
    for (int64_t t = 0; t < num_tokens; ++t) identity[static_cast<size_t>(t * num_tokens + t)] = 1;
    for (int64_t e = 0; e < options.num_experts; ++e) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        gate_ED.push_back(logits_TE[static_cast<size_t>(t * options.num_experts + e)]);
      }
    }
    x_TD = Variable(testing::MakeTensor(identity, {num_tokens, num_tokens}));
    router->VisitParameters([&](Parameter& parameter) {
      Initialize(parameter, 1);
      if (parameter.name == "layer.gate.weight") {
        parameter.value.SetData(testing::MakeTensor(gate_ED, parameter.shape));
      } else if (!bias_E.empty()) {
        parameter.value.SetData(testing::MakeTensor(bias_E, parameter.shape));
      }
    });
  }

  Routing Route() { return router->Route(x_TD, *context); }
  Parameter& parameter(const std::string& name) {
    Parameter* found = nullptr;
    router->VisitParameters([&](Parameter& parameter) {
      if (parameter.name == name) found = &parameter;
    });
    MF_CHECK(found != nullptr) << " " << name;
    return *found;
  }
};

std::vector<std::set<int64_t>> Sets(const Tensor& ids_TK) {
  std::vector<int64_t> ids = ToVector<int64_t>(ids_TK);
  std::vector<std::set<int64_t>> sets(static_cast<size_t>(ids_TK.dim(0)));
  for (size_t i = 0; i < ids.size(); ++i) {
    sets[i / static_cast<size_t>(ids_TK.cols())].insert(ids[i]);
  }
  return sets;
}

// Weights of the first token in the order of expert ids.
std::vector<double> FirstRow(const Routing& routing) {
  std::vector<int64_t> ids = ToVector<int64_t>(routing.ids_TK);
  std::vector<double> weights = ToVector<double>(routing.weights_TK.data());
  std::map<int64_t, double> by_id;
  for (int64_t k = 0; k < routing.ids_TK.cols(); ++k) by_id[ids[k]] = weights[k];
  std::vector<double> sorted;
  for (const auto& [id, weight] : by_id) sorted.push_back(weight);
  return sorted;
}

class RouterConformanceTest : public MoeTest, public ::testing::WithParamInterface<std::string> {
 protected:
  MoeOptions Options() {
    return {.num_experts = 6, .top_k = 3, .router = GetParam(), .aux_loss_coefficient = 1.0};
  }
};

TEST_P(RouterConformanceTest, ChoosesDifferentExpertsAndNormalizesWhatItSays) {
  MoeOptions options = Options();
  options.routed_scaling = 1.5;
  Fixture fixture(options, testing::SineSequence(7 * 6, 1.1, 0.4, 2.0), 7);
  Routing routing = fixture.Route();
  EXPECT_EQ(routing.ids_TK.shape(), Shape({7, 3}));
  EXPECT_EQ(routing.weights_TK.shape(), Shape({7, 3}));
  for (const std::set<int64_t>& chosen : Sets(routing.ids_TK)) {
    EXPECT_EQ(chosen.size(), 3u);
    EXPECT_GE(*chosen.begin(), 0);
    EXPECT_LT(*chosen.rbegin(), 6);
  }
  std::vector<double> weights = ToVector<double>(routing.weights_TK.data());
  std::vector<double> scores = ToVector<double>(routing.scores_TE.data());
  for (int64_t t = 0; t < 7; ++t) {
    EXPECT_NEAR(weights[t * 3] + weights[t * 3 + 1] + weights[t * 3 + 2], 1.5, 1e-6);
    double sum = 0;
    for (int64_t e = 0; e < 6; ++e) sum += scores[t * 6 + e];
    EXPECT_NEAR(sum, 1.0, 1e-6);
  }
}

TEST_P(RouterConformanceTest, TiesGoToTheLowerExpert) {
  Fixture fixture(Options(), std::vector<double>(2 * 6, 0.25), 2);
  EXPECT_THAT(ToVector<int64_t>(fixture.Route().ids_TK), ElementsAre(0, 1, 2, 0, 1, 2));
}

TEST_P(RouterConformanceTest, NoTokens) {
  Fixture fixture(Options(), testing::SineSequence(6, 1, 1, 1), 1);
  Routing routing = fixture.router->Route(Variable(Tensor::Empty({0, 1})), *fixture.context);
  EXPECT_EQ(routing.ids_TK.shape(), Shape({0, 3}));
  EXPECT_EQ(routing.weights_TK.shape(), Shape({0, 3}));
}

TEST_P(RouterConformanceTest, GateStaysF32AndNamesItsWeight) {
  Fixture fixture(Options(), testing::SineSequence(2 * 6, 1, 1, 1), 2);
  Parameter& gate = fixture.parameter("layer.gate.weight");
  EXPECT_EQ(gate.dtype, DType::kF32);
  EXPECT_EQ(gate.shape, Shape({6, 2}));
  EXPECT_TRUE(gate.trained && gate.decay);
}

INSTANTIATE_TEST_SUITE_P(Registered, RouterConformanceTest,
                         ::testing::ValuesIn(RouterRegistry().Names()),
                         [](const auto& test) { return test.param; });

class RoutersTest : public MoeTest {};

// Golden values of a float64 implementation of the published routers.
TEST_F(RoutersTest, SoftmaxMatchesTheGolden) {
  MoeOptions options{.num_experts = 8, .top_k = 3};
  Fixture fixture(options, testing::SineSequence(40, 1.3, 0.2, 2.0), 5);
  Routing routing = fixture.Route();
  EXPECT_THAT(Sets(routing.ids_TK),
              ElementsAre(std::set<int64_t>{1, 5, 6}, std::set<int64_t>{2, 3, 7},
                          std::set<int64_t>{0, 4, 5}, std::set<int64_t>{1, 2, 6},
                          std::set<int64_t>{2, 3, 7}));
  EXPECT_THAT(FirstRow(routing),
              ElementsAre(DoubleNear(.436773593, 1e-6), DoubleNear(.1335031182, 1e-6),
                          DoubleNear(.4297232888, 1e-6)));
  options.renormalize = false;
  Fixture raw(options, testing::SineSequence(40, 1.3, 0.2, 2.0), 5);
  EXPECT_THAT(FirstRow(raw.Route()),
              ElementsAre(DoubleNear(.3347150238, 1e-6), DoubleNear(.1023081526, 1e-6),
                          DoubleNear(.3293121268, 1e-6)));
}

TEST_F(RoutersTest, SigmoidMatchesTheGolden) {
  MoeOptions options{.num_experts = 8,
                     .top_k = 3,
                     .router = "sigmoid_group_bias",
                     .routed_scaling = 2.5,
                     .num_groups = 4,
                     .top_k_groups = 2};
  Fixture fixture(options, testing::SineSequence(40, 1.3, 0.2, 2.0), 5,
                  testing::SineSequence(8, 0.9, 0.7, 0.3));
  Routing routing = fixture.Route();
  EXPECT_THAT(Sets(routing.ids_TK),
              ElementsAre(std::set<int64_t>{0, 1, 6}, std::set<int64_t>{2, 3, 7},
                          std::set<int64_t>{0, 1, 4}, std::set<int64_t>{1, 6, 7},
                          std::set<int64_t>{2, 3, 7}));
  EXPECT_THAT(FirstRow(routing),
              ElementsAre(DoubleNear(.6343688928, 1e-6), DoubleNear(.9337308488, 1e-6),
                          DoubleNear(.9319002584, 1e-6)));
}

TEST_F(RoutersTest, TopOneWithoutRenormalizationKeepsTheSoftmaxOverAllExperts) {
  MoeOptions options{.num_experts = 4, .top_k = 1, .renormalize = false};
  Fixture fixture(options, {0.0, 1.0, 2.0, 0.5}, 1);
  double sum = 1 + std::exp(1.0) + std::exp(2.0) + std::exp(0.5);
  EXPECT_THAT(ToVector<double>(fixture.Route().weights_TK.data()),
              ElementsAre(DoubleNear(std::exp(2.0) / sum, 1e-6)));
}

TEST_F(RoutersTest, SigmoidBiasChoosesButDoesNotWeigh) {
  MoeOptions options{
      .num_experts = 3, .top_k = 1, .router = "sigmoid_group_bias", .renormalize = false};
  Fixture fixture(options, {2.0, 0.0, -1.0}, 1, {0.0, 0.0, 0.9});
  Routing routing = fixture.Route();
  EXPECT_THAT(ToVector<int64_t>(routing.ids_TK), ElementsAre(2));
  EXPECT_THAT(ToVector<double>(routing.weights_TK.data()),
              ElementsAre(DoubleNear(1 / (1 + std::exp(1.0)), 1e-6)));
}

TEST_F(RoutersTest, SigmoidBiasIsABufferThatMovesAfterTheStep) {
  MoeOptions options{
      .num_experts = 4, .top_k = 1, .router = "sigmoid_group_bias", .bias_update_rate = 0.125};
  Fixture fixture(options, testing::SineSequence(4, 1, 1, 1), 1, {0.5, 0.5, 0.5, -1.0});
  Parameter& bias = fixture.parameter("layer.gate.score_correction_bias");
  EXPECT_FALSE(bias.trained || bias.decay || bias.value.requires_grad());
  uint64_t version = bias.value.version();
  fixture.router->OnStepEnd({5, 3, 1, 3});
  EXPECT_THAT(ToVector<float>(bias.value.data()), ElementsAre(0.375f, 0.5f, 0.625f, -1.0f));
  EXPECT_GT(bias.value.version(), version);
}

TEST_F(RoutersTest, SigmoidBiasStaysWhereTheRateIsZero) {
  MoeOptions options{.num_experts = 2, .top_k = 1, .router = "sigmoid_group_bias"};
  Fixture fixture(options, {1.0, 0.0}, 1, {0.25, 0.5});
  fixture.router->OnStepEnd({9, 1});
  EXPECT_THAT(ToVector<float>(fixture.parameter("layer.gate.score_correction_bias").value.data()),
              ElementsAre(0.25f, 0.5f));
}

TEST_F(RoutersTest, SoftmaxRefusesOptionsItHasNoMeaningFor) {
  RouterFactory make = *RouterRegistry().Find("softmax_top_k");
  MoeOptions options{.hidden_size = 2, .num_experts = 4, .top_k = 1, .bias_update_rate = 0.1};
  EXPECT_THAT(std::string(make("r", options).status().message()), HasSubstr("bias_update_rate"));
  options = {.hidden_size = 2, .num_experts = 4, .top_k = 1, .num_groups = 2};
  EXPECT_THAT(std::string(make("r", options).status().message()), HasSubstr("num_groups is 2"));
}

}  // namespace
}  // namespace meshfold::moe
