// Generation: Hugging Face's greedy continuations, the cache against recomputing everything, and
// the choice of a token.
#include "train/generation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "core/io/json.h"
#include "core/nn/init.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::train {
namespace {

constexpr char kGoldens[] = "tests/goldens/hf";

struct Model {
  models::ModelConfig config;
  std::unique_ptr<LayerStack> layers;
};

Model LoadGolden(const std::string& name) {
  models::HfDirectory directory = models::OpenHf(JoinPath(JoinPath(kGoldens, name), "hf")).value();
  Model model{directory.config, models::BuildDecoder(directory.config).value()};
  MF_EXPECT_OK(models::LoadHfWeights(directory, *model.layers, models::HfDType::kOfFile));
  return model;
}

std::vector<int32_t> GreedyWithoutCache(LayerStack& model, std::vector<int32_t> tokens,
                                        int64_t count) {
  ScopedGradMode no_grad(GradMode::kNoGrad);
  std::vector<int32_t> generated;
  while (static_cast<int64_t>(generated.size()) < count) {
    int32_t length = static_cast<int32_t>(tokens.size());
    std::vector<int32_t> targets(tokens.size(), -100);
    StepContext context(MakePackedBatch(tokens, targets, {0, length}),
                        {.training = false, .want_logits = true});
    model(Variable(), context);
    std::vector<float> last = ToVector<float>(context.logits.Narrow(length - 1, 1));
    generated.push_back(
        static_cast<int32_t>(std::max_element(last.begin(), last.end()) - last.begin()));
    tokens.push_back(generated.back());
  }
  return generated;
}

class GenerationTest : public ::testing::Test {
 protected:
  // Large initial weights, so that logits differ by far more than rounding.
  static Model RandomModel() {
    models::ModelConfig config;
    config.vocab_size = 40;
    config.hidden_size = config.moe.expert_size = 16;
    config.num_layers = 2;
    config.num_heads = 4;
    config.head_dim = 4;
    config.max_position = 32;
    config.qk_norm = models::QkNorm::kPerHead;
    config.moe.num_experts = 4;
    config.moe.top_k = 2;
    config.moe.capacity_factor = 0.5;  // must not drop tokens here
    config.initializer_range = 0.5;
    Model model{config, models::BuildDecoder(config).value()};
    Initialize(*model.layers, 3);
    return model;
  }
  static absl::StatusOr<std::vector<int32_t>> Run(Model& model, const std::vector<int32_t>& prompt,
                                                  GenerateOptions options) {
    options.max_position = model.config.max_position;
    return Generate(*model.layers, prompt, options, nullptr);
  }
  testing::ScopedTestContext context_;
};

TEST_F(GenerationTest, GreedyContinuationsAreHuggingFaces) {
  int cases = 0;
  std::vector<std::string> names = ListDirectory(kGoldens).value();
  for (const std::string& name : names) {
    std::string path = JoinPath(JoinPath(kGoldens, name), "generate.json");
    if (!FileExists(path)) continue;
    nlohmann::json golden = ReadJsonFile(path).value();
    std::vector<int32_t> expected = golden["generated"].get<std::vector<int32_t>>();
    Model model = LoadGolden(name);
    EXPECT_EQ(Run(model, golden["prompt"].get<std::vector<int32_t>>(),
                  {.max_new_tokens = static_cast<int64_t>(expected.size())})
                  .value(),
              expected)
        << name;
    ++cases;
  }
  EXPECT_GE(cases, 3);
}

TEST_F(GenerationTest, CacheEqualsNoCache) {
  std::vector<int32_t> prompt = {5, 1, 30, 7, 7, 2, 11, 19};  // longer than the window of 5
  Model random = RandomModel(), window = LoadGolden("mixtral_window5");
  for (Model* model : {&random, &window}) {
    EXPECT_EQ(Run(*model, prompt, {.max_new_tokens = 20}).value(),
              GreedyWithoutCache(*model->layers, prompt, 20));
  }
}

TEST_F(GenerationTest, EmitsEachTokenAndStopsAfterEos) {
  Model model = RandomModel();
  std::vector<int32_t> all = Run(model, {1, 2}, {.max_new_tokens = 12}).value();
  int32_t eos = all[4];
  std::vector<int32_t> emitted;
  std::vector<int32_t> stopped =
      Generate(*model.layers, {1, 2},
               {.max_new_tokens = 12, .eos = {static_cast<int32_t>(200), eos}, .max_position = 32},
               [&](int32_t token) { emitted.push_back(token); })
          .value();
  EXPECT_EQ(stopped, emitted);
  auto first = std::find(all.begin(), all.end(), eos);
  EXPECT_EQ(stopped, std::vector<int32_t>(all.begin(), first + 1));
}

TEST_F(GenerationTest, ASeedRepeatsItselfAndAnotherDiffers) {
  Model model = RandomModel();
  GenerateOptions options{.max_new_tokens = 24, .temperature = 2.0, .seed = 1};
  std::vector<int32_t> first = Run(model, {3}, options).value();
  EXPECT_EQ(Run(model, {3}, options).value(), first);
  options.seed = 2;
  EXPECT_NE(Run(model, {3}, options).value(), first);
  options.top_k = 1;
  EXPECT_EQ(Run(model, {3}, options).value(), Run(model, {3}, {.max_new_tokens = 24}).value());
}

// The draw at a position depends on nothing before it, so a longer prompt continues alike.
TEST_F(GenerationTest, SamplingGoesOnFromWhatWasSampled) {
  Model model = RandomModel();
  GenerateOptions options{.max_new_tokens = 10, .temperature = 1.0, .seed = 4};
  std::vector<int32_t> all = Run(model, {3, 9}, options).value();
  std::vector<int32_t> prompt = {3, 9, all[0], all[1], all[2]};
  options.max_new_tokens = 7;
  EXPECT_EQ(Run(model, prompt, options).value(), std::vector<int32_t>(all.begin() + 3, all.end()));
}

TEST_F(GenerationTest, FillsTheContextAndRefusesMore) {
  Model model = RandomModel();
  EXPECT_EQ(Run(model, {1, 2}, {.max_new_tokens = 30}).value().size(), 30u);
  EXPECT_TRUE(FailsWith(Run(model, {1, 2}, {.max_new_tokens = 31}),
                        absl::StatusCode::kInvalidArgument,
                        "2 prompt tokens and 31 new ones exceed the model's 32 positions"));
  EXPECT_EQ(Run(model, {1, 2}, {.max_new_tokens = 0}).value().size(), 0u);
}

TEST_F(GenerationTest, RefusesWhatHasNoMeaning) {
  Model model = RandomModel();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(FailsWith(Run(model, {}, {}), kInvalid, "empty"));
  EXPECT_TRUE(FailsWith(Run(model, {1}, {.max_new_tokens = -1}), kInvalid, "-1"));
  EXPECT_TRUE(FailsWith(Run(model, {1}, {.max_new_tokens = 1, .temperature = -2}), kInvalid, "-2"));
  EXPECT_TRUE(FailsWith(Run(model, {1}, {.max_new_tokens = 1, .temperature = nan}), kInvalid,
                        "temperature"));
  EXPECT_TRUE(FailsWith(Run(model, {1}, {.max_new_tokens = 1, .top_k = -3}), kInvalid, "-3"));
  EXPECT_TRUE(
      FailsWith(Run(model, {1, 40}, {.max_new_tokens = 1}), kInvalid, "id 40 at position 1"));
  EXPECT_TRUE(FailsWith(Run(model, {-1}, {.max_new_tokens = 1}), kInvalid, "id -1 at position 0"));
}

// How often each of `logits` is drawn in 4000 positions.
std::map<int32_t, double> Frequencies(const std::vector<float>& logits,
                                      const GenerateOptions& options) {
  std::map<int32_t, double> frequencies;
  for (int64_t p = 0; p < 4000; ++p) frequencies[SampleToken(logits, options, p)] += 1.0 / 4000;
  return frequencies;
}

// Four standard deviations of a share of 4000 draws are at most 0.032.
TEST(SampleTokenTest, DrawsByTheSoftmaxAtTheTemperature) {
  const float log3 = std::log(3.0f);
  std::map<int32_t, double> warm = Frequencies({0.0f, 2 * log3, log3}, {.temperature = 1.0});
  EXPECT_NEAR(warm[0], 1.0 / 13, 0.032);
  EXPECT_NEAR(warm[1], 9.0 / 13, 0.032);
  EXPECT_NEAR(warm[2], 3.0 / 13, 0.032);
  std::map<int32_t, double> hot = Frequencies({0.0f, 2 * log3}, {.temperature = 2.0});
  EXPECT_NEAR(hot[1], 3.0 / 4, 0.032);
}

TEST(SampleTokenTest, TopKLeavesTheOthersOut) {
  const float log3 = std::log(3.0f);
  std::map<int32_t, double> two =
      Frequencies({0.0f, 2 * log3, log3, 0.0f}, {.temperature = 1.0, .top_k = 2});
  EXPECT_EQ(two.size(), 2u);
  EXPECT_NEAR(two[1], 3.0 / 4, 0.032);
  // More than there are is all of them; of equals the lower ids stay.
  EXPECT_EQ(Frequencies({0.0f, 0.0f, 0.0f}, {.temperature = 1.0, .top_k = 9}).size(), 3u);
  std::map<int32_t, double> equal =
      Frequencies({0.0f, 0.0f, 0.0f}, {.temperature = 1.0, .top_k = 2});
  EXPECT_EQ(equal.count(2), 0u);
}

TEST(SampleTokenTest, GreedyTakesTheLowestOfEquals) {
  EXPECT_EQ(SampleToken({1.0f, 3.0f, 3.0f}, {}, 0), 1);
}

TEST(SampleTokenTest, LargeLogitsDoNotOverflow) {
  EXPECT_EQ(SampleToken({-3e38f, 3e38f}, {.temperature = 1e-3}, 5), 1);
}

}  // namespace
}  // namespace meshfold::train
