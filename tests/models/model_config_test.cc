#include "models/model_config.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::models {
namespace {

using ::testing::HasSubstr;

ModelConfig Sizes(int64_t vocab, int64_t hidden, int64_t layers, int64_t heads, int64_t kv_heads,
                  int64_t intermediate) {
  ModelConfig config;
  config.vocab_size = vocab;
  config.hidden_size = hidden;
  config.num_layers = layers;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = 128;
  config.intermediate_size = intermediate;
  return config;
}

void SetMoe(ModelConfig& config, int64_t experts, int64_t top_k, int64_t expert_size) {
  config.moe.num_experts = experts;
  config.moe.top_k = top_k;
  config.moe.expert_size = expert_size;
}

// Published totals; the models' config.json give the sizes.
TEST(ModelConfigTest, CountsLlama31With8BParameters) {
  const ModelConfig config = Sizes(128256, 4096, 32, 32, 8, 14336);
  EXPECT_EQ(NumParameters(config), 8030261248);
  EXPECT_EQ(NumActiveParameters(config), 8030261248);
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

TEST(ModelConfigTest, CountsMixtral8x7B) {
  ModelConfig config = Sizes(32000, 4096, 32, 32, 8, 14336);
  SetMoe(config, 8, 2, 14336);
  EXPECT_EQ(NumParameters(config), 46702792704);
  EXPECT_EQ(NumActiveParameters(config), 12879925248);
  EXPECT_TRUE(Validate(config).ok()) << Validate(config);
}

TEST(ModelConfigTest, CountsQwen3Moe) {
  ModelConfig config = Sizes(151936, 2048, 48, 32, 4, 6144);
  config.qk_norm = QkNorm::kPerHead;
  SetMoe(config, 128, 8, 768);
  EXPECT_EQ(NumParameters(config), 30532122624);
  EXPECT_EQ(NumActiveParameters(config), 3353032704);

  ModelConfig large = Sizes(151936, 4096, 94, 64, 4, 12288);
  large.qk_norm = QkNorm::kPerHead;
  SetMoe(large, 128, 8, 1536);
  EXPECT_EQ(NumParameters(large), 235093634560);
  EXPECT_EQ(NumActiveParameters(large), 22190763520);
}

TEST(ModelConfigTest, CountsOlmoe) {
  ModelConfig config = Sizes(50304, 2048, 16, 16, 16, 1024);
  config.qk_norm = QkNorm::kPerProjection;
  SetMoe(config, 64, 8, 1024);
  EXPECT_EQ(NumParameters(config), 6919161856);
  EXPECT_EQ(NumActiveParameters(config), 1282017280);
}

// V 10, D 4, one head of 2 dims, dense width 3, F 5; every option on: counted by hand.
TEST(ModelConfigTest, CountsEveryOption) {
  ModelConfig config = Sizes(10, 4, 2, 1, 1, 3);
  config.head_dim = 2;
  config.attention_bias = true;
  config.mlp_bias = true;
  config.tie_embeddings = true;
  SetMoe(config, 6, 2, 5);
  config.moe.num_shared_experts = 1;
  config.moe.router = "sigmoid_group_bias";
  config.layer_is_moe = {false, true};
  const int64_t attention = 4 * 4 * 2 + 3 * 2 + 4;  // q, k, v, o and their biases
  const int64_t dense = 3 * 4 * 3 + 2 * 3 + 4;
  const int64_t outside = 10 * 4 + 4 + 2 * (attention + 2 * 4) + dense;
  EXPECT_EQ(NumParameters(config), outside + 6 * 4 + 6 + (6 + 1) * 3 * 4 * 5);
  EXPECT_EQ(NumActiveParameters(config), outside + 6 * 4 + 6 + (2 + 1) * 3 * 4 * 5);
}

struct Refusal {
  std::string name;
  std::function<void(ModelConfig&)> break_it;
  std::string message;
};

class ModelConfigRefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelConfigRefusalTest, NamesBothValues) {
  ModelConfig config;
  SetMoe(config, 8, 2, 64);
  ASSERT_TRUE(Validate(config).ok()) << Validate(config);
  GetParam().break_it(config);
  const absl::Status status = Validate(config);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, ModelConfigRefusalTest,
    ::testing::ValuesIn<Refusal>({
        {"Layers", [](ModelConfig& c) { c.num_layers = 0; }, "num_layers is 0"},
        {"Vocabulary", [](ModelConfig& c) { c.vocab_size = -3; }, "vocab_size is -3"},
        {"KvHeads", [](ModelConfig& c) { c.num_kv_heads = 3; },
         "num_heads 4 is not a multiple of num_kv_heads 3"},
        {"OddHead", [](ModelConfig& c) { c.head_dim = 63; }, "head_dim 63 is odd"},
        {"TopK", [](ModelConfig& c) { c.moe.top_k = 9; },
         "moe.top_k 9 is outside [1, moe.num_experts = 8]"},
        {"NoTopK", [](ModelConfig& c) { c.moe.top_k = 0; }, "moe.top_k 0 is outside"},
        {"ExpertSize", [](ModelConfig& c) { c.moe.expert_size = 0; }, "moe.expert_size is 0"},
        {"Groups", [](ModelConfig& c) { c.moe.num_groups = 3; },
         "moe.num_experts 8 is not a multiple of moe.num_groups 3"},
        {"TopKGroups", [](ModelConfig& c) { c.moe.top_k_groups = 2; },
         "moe.top_k_groups 2 is outside [1, moe.num_groups = 1]"},
        {"ReachableExperts",
         [](ModelConfig& c) {
           c.moe.num_groups = 8;
           c.moe.top_k = 2;
         },
         "moe.top_k 2 is above the 1 experts"},
        {"LayerFlags", [](ModelConfig& c) { c.layer_is_moe = {true}; },
         "layer_is_moe has 1 entries for num_layers 4"},
        {"Llama3Factors",
         [](ModelConfig& c) {
           c.rope.scaling = RopeConfig::Scaling::kLlama3;
           c.rope.low_freq_factor = 4;
         },
         "rope.low_freq_factor 4 must be above 0 and below rope.high_freq_factor 4"},
        {"YarnTheta",
         [](ModelConfig& c) {
           c.rope.scaling = RopeConfig::Scaling::kYarn;
           c.rope.theta = 1;
         },
         "rope.theta is 1; yarn needs one above 1"},
        {"AttentionFactor", [](ModelConfig& c) { c.rope.attention_factor = -1; },
         "rope.attention_factor is -1; it must be 0 or more"},
        {"NaN", [](ModelConfig& c) { c.norm_eps = 0.0 / 0.0; }, "norm_eps is nan"},
        {"Overflow",
         [](ModelConfig& c) {
           c.hidden_size = c.intermediate_size = int64_t{1} << 24;
           c.num_layers = 100'000;
           c.moe.num_experts = 0;
         },
         "parameters; at most"},
        {"WideLayers", [](ModelConfig& c) { c.hidden_size = int64_t{1} << 40; },
         "hidden_size is 1099511627776; it may be at most 16777216"},
        {"ManyLayers", [](ModelConfig& c) { c.num_layers = 100'001; },
         "num_layers is 100001; it may be at most 100000"},
        {"ManyExperts", [](ModelConfig& c) { c.moe.num_experts = 65'537; },
         "moe.num_experts is 65537; it may be at most 65536"},
    }),
    [](const ::testing::TestParamInfo<Refusal>& info) { return info.param.name; });

}  // namespace
}  // namespace meshfold::models
