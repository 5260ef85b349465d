// config.json: values that cannot be, options that no model of ours has, and what a family cannot
// say in Hugging Face's form. That good ones are read right is what hf_round_trip_test.cc and
// tests/train/hf_parity_test.cc show.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "models/family.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"

namespace meshfold::models {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class HfConfigTest : public ScratchTest {
 protected:
  // The config of the golden case `name` with other values of some keys; null takes a key away.
  absl::StatusOr<ModelConfig> Read(const std::string& name, const nlohmann::json& changes) const {
    nlohmann::json config = ReadRawHf(HfGoldenPath(name, "hf")).config;
    config.merge_patch(changes);
    Put("config.json", config.dump());
    return ReadHfConfig(directory());
  }
  void ExpectRefused(const std::string& name, const nlohmann::json& changes,
                     absl::string_view part) const {
    absl::StatusOr<ModelConfig> config = Read(name, changes);
    EXPECT_TRUE(FailsWith(config, kInvalid, part)) << changes;
    EXPECT_TRUE(absl::StrContains(config.status().message(), directory())) << config.status();
  }
};

TEST_F(HfConfigTest, UnknownModelTypesNameTheKnown) {
  constexpr char kKnown[] = "known: llama, mixtral, olmoe, qwen3_moe";
  ExpectRefused("llama_gqa", {{"model_type", "gpt2"}},
                absl::StrCat("unknown model family 'gpt2'; ", kKnown));
  ExpectRefused("llama_gqa", {{"model_type", nullptr}},
                absl::StrCat("config.json has no 'model_type'; ", kKnown));
  ExpectRefused("llama_gqa", {{"model_type", 3}}, "'model_type' is 3, not a string");
}

TEST_F(HfConfigTest, WhatIsNoConfigIsNamed) {
  const std::string path = Path("config.json");
  for (const char* text : {"", "{", "nonsense", "{\"a\": 1, \"a\": 2}", "[]", "3"}) {
    Put("config.json", text);
    EXPECT_TRUE(FailsWith(ReadHfConfig(directory()), kInvalid, path)) << text;
  }
}

TEST_F(HfConfigTest, WrongTypesNameKeyAndValue) {
  ExpectRefused("llama_gqa", {{"hidden_size", "40"}}, "'hidden_size' is \"40\", not a 64-bit");
  ExpectRefused("llama_gqa", {{"hidden_size", 40.5}},
                "'hidden_size' is 40.5, not a 64-bit integer");
  ExpectRefused("llama_gqa", {{"vocab_size", 18446744073709551613u}},
                "'vocab_size' is 18446744073709551613, not a 64-bit integer");
  ExpectRefused("llama_gqa", {{"rms_norm_eps", true}}, "'rms_norm_eps' is true, not a number");
  ExpectRefused("llama_gqa", {{"tie_word_embeddings", 1}},
                "'tie_word_embeddings' is 1, not a boolean");
  ExpectRefused("llama_gqa", {{"rope_parameters", 10000}},
                "'rope_parameters' is 10000, not an obj");
  ExpectRefused("llama_gqa", {{"eos_token_id", {1, "2"}}},
                "'eos_token_id' is [1,\"2\"], not an id");
  ExpectRefused("llama_gqa", {{"hidden_act", std::string(1000, 'x')}},
                "is not supported (silu is)");
  ExpectRefused("qwen3_moe_mlp_only", {{"mlp_only_layers", 1}},
                "'mlp_only_layers' is 1, not a list");
  ExpectRefused("qwen3_moe_mlp_only", {{"mlp_only_layers", {3}}},
                "mlp_only_layers holds 3, the model has 3 layers");
}

TEST_F(HfConfigTest, ValuesOutOfRangeAreNamed) {
  ExpectRefused("llama_gqa", {{"num_attention_heads", 0}}, "num_attention_heads is 0");
  // Before anything is made for each layer.
  ExpectRefused("qwen3_moe_mlp_only", {{"num_hidden_layers", 4'000'000'000'000}},
                "num_hidden_layers is 4000000000000, outside [1, 100000]");
  ExpectRefused("llama_gqa", {{"num_hidden_layers", -1}}, "num_hidden_layers is -1");
  ExpectRefused("llama_gqa", {{"vocab_size", -5}}, "vocab_size is -5");
  ExpectRefused("llama_gqa", {{"max_position_embeddings", 1'000'000'000'000}},
                "max_position is 1000000000000; it may be at most");
  ExpectRefused("llama_gqa", {{"num_key_value_heads", 3}},
                "num_heads 4 is not a multiple of num_kv_heads 3");
  ExpectRefused("llama_gqa", {{"head_dim", 9}}, "head_dim 9 is odd");
  ExpectRefused("mixtral_gqa", {{"num_experts_per_tok", 5}},
                "moe.top_k 5 is outside [1, moe.num_experts = 4]");
  ExpectRefused("mixtral_gqa", {{"num_local_experts", 1'000'000'000}},
                "moe.num_experts is 1000000000; it may be at most 65536");
  ExpectRefused("qwen3_moe_mlp_only", {{"decoder_sparse_step", 0}}, "decoder_sparse_step is 0");
  ExpectRefused("llama_gqa", {{"rope_parameters", {{"rope_theta", 0}}}}, "rope.theta is 0");
}

// Each would silently be another model.
TEST_F(HfConfigTest, OptionsOfOtherModelsAreRefused) {
  ExpectRefused("llama_gqa", {{"hidden_act", "gelu"}}, "hidden_act 'gelu' is not supported");
  ExpectRefused("llama_yarn", {{"rope_parameters", {{"rope_type", "longrope"}}}},
                "rope_type 'longrope' is not supported (default, linear, llama3, yarn are)");
  ExpectRefused("llama_gqa", {{"partial_rotary_factor", 0.5}},
                "partial_rotary_factor 0.5 is not supported");
  ExpectRefused("llama_gqa", {{"rope_parameters", {{"partial_rotary_factor", 0.25}}}},
                "partial_rotary_factor 0.25 is not supported");
}

// One way round of the pairs of keys that mean the same.
TEST_F(HfConfigTest, ExpertsAreCountedUnderEitherName) {
  for (const char* name : {"mixtral_gqa", "qwen3_moe_norm_k3", "olmoe_mha_raw"}) {
    ModelConfig golden = ReadHfConfig(HfGoldenPath(name, "hf")).value();
    for (const char* key : {"num_experts", "num_local_experts"}) {
      nlohmann::json changes = {{"num_experts", nullptr}, {"num_local_experts", nullptr}};
      changes[key] = golden.moe.num_experts;
      absl::StatusOr<ModelConfig> config = Read(name, changes);
      MF_ASSERT_OK(config);
      EXPECT_TRUE(*config == golden) << name << " with " << key;
    }
  }
}

TEST_F(HfConfigTest, WhatAFamilyCannotSayIsNotWritten) {
  const auto refused = [](const std::string& name, const auto& change, absl::string_view part) {
    ModelConfig config = ReadHfConfig(HfGoldenPath(name, "hf")).value();
    Family family = FamilyRegistry().Find(config.family).value();
    MF_EXPECT_OK(family.to_hf(config));
    change(config);
    EXPECT_TRUE(FailsWith(family.to_hf(config), kInvalid, part)) << name;
    EXPECT_TRUE(FailsWith(family.to_hf(config), kInvalid, config.family)) << name;
  };
  using C = ModelConfig;
  refused(
      "llama_gqa", [](C& c) { c.qk_norm = QkNorm::kPerHead; }, "q and k norms");
  refused(
      "llama_gqa", [](C& c) { c.sliding_window = 4; }, "a sliding window");
  refused(
      "llama_gqa", [](C& c) { c.moe.num_experts = 2; }, "experts");
  refused(
      "mixtral_gqa", [](C& c) { c.moe.renormalize = false; }, "without renormalisation");
  refused(
      "mixtral_gqa",
      [](C& c) {
        c.layer_is_moe = {true, false};
      },
      "dense layers");
  refused(
      "mixtral_gqa", [](C& c) { c.attention_bias = true; }, "attention biases");
  refused(
      "olmoe_mha_raw", [](C& c) { c.head_dim = 6; }, "head_dim other than");
  refused(
      "olmoe_mha_raw", [](C& c) { c.qk_norm = QkNorm::kNone; }, "norms over the projection");
  refused(
      "qwen3_moe_norm_k3", [](C& c) { c.moe.num_shared_experts = 1; }, "shared experts");
  refused(
      "qwen3_moe_norm_k3", [](C& c) { c.moe.router = "sigmoid_group_bias"; }, "router");
  refused(
      "qwen3_moe_norm_k3", [](C& c) { c.clip_qkv = 1.0; }, "clipped");
}

}  // namespace
}  // namespace meshfold::models
