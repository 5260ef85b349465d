// `meshfold convert` to a checkpoint and back: what a user's Hugging Face directory goes through,
// its config as YAML on the way.
#include <string>

#include "gtest/gtest.h"
#include "models/family.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"
#include "train/commands/commands.h"
#include "train/config.h"

namespace meshfold::train {
namespace {

using models::ExpectSameMeaning;
using models::ExpectSameTensors;
using models::HfGoldenPath;
using models::RawHf;
using models::ReadRawHf;

class HfConvertTest : public ScratchTest {
 protected:
  void ThereAndBack(const std::string& in) {
    MF_ASSERT_OK(RunConvert({.to = "meshfold", .in_dir = in, .out_dir = Path("checkpoint")}));
    MF_ASSERT_OK(RunConvert({.to = "hf", .in_dir = Path("checkpoint"), .out_dir = Path("out")}));
  }
};

class HfConvertGoldenTest : public HfConvertTest,
                            public ::testing::WithParamInterface<std::string> {};

TEST_P(HfConvertGoldenTest, KeepsTensorsTypesAndConfig) {
  std::string golden = HfGoldenPath(GetParam(), "hf");
  ThereAndBack(golden);
  ExpectSameTensors(ReadRawHf(Path("out")), ReadRawHf(golden));
  ExpectSameMeaning(Path("out"), golden);

  RawHf bf16 = ReadRawHf(golden);
  ConvertTensors(bf16, FileDType::kBF16);
  bf16.config.update({{"dtype", "bfloat16"}, {"bos_token_id", 1}, {"eos_token_id", {2, 5}}});
  WriteRawHf(Path("in"), bf16);
  ThereAndBack(Path("in"));
  ExpectSameTensors(ReadRawHf(Path("out")), bf16);
  ExpectSameMeaning(Path("out"), Path("in"));
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfConvertGoldenTest, ::testing::ValuesIn(models::HfGoldenCases()),
                         [](const auto& info) { return info.param; });

TEST_F(HfConvertTest, WritesFusedExpertsAndShards) {
  MF_ASSERT_OK(RunConvert({.to = "meshfold",
                           .in_dir = HfGoldenPath("qwen3_moe_norm_k3", "hf"),
                           .out_dir = Path("checkpoint")}));
  MF_ASSERT_OK(RunConvert({.to = "hf",
                           .in_dir = Path("checkpoint"),
                           .out_dir = Path("out"),
                           .expert_form = "fused",
                           .max_shard_bytes = 20'000}));
  EXPECT_TRUE(FileExists(Path("out/model.safetensors.index.json")));
  ExpectSameTensors(ReadRawHf(Path("out")),
                    ReadRawHf(HfGoldenPath("qwen3_moe_norm_k3", "hf_fused")));
}

// Values that may stand in a config.json by mistake. What is accepted must survive as the YAML of a
// checkpoint: else convert writes what no command can open.
TEST(HfConfigAsYamlTest, WhatIsAcceptedComesBackAndTheRestIsRefused) {
  const nlohmann::json values = {nullptr,
                                 -1,
                                 0,
                                 1,
                                 3,
                                 4611686018427387904,
                                 0.5,
                                 -2.5,
                                 1e9,
                                 "x",
                                 true,
                                 {1, nullptr},
                                 nlohmann::json::object()};
  int accepted = 0, refused = 0;
  const auto check = [&](const nlohmann::json& json) {
    models::Family family = models::FamilyRegistry().Find(json["model_type"]).value();
    absl::StatusOr<models::ModelConfig> model = family.from_hf(json);
    absl::Status status = model.ok() ? models::Validate(*model) : model.status();
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
      ++refused;
      return;
    }
    absl::StatusOr<Config> read =
        ParseConfig(ResolvedYaml(WithModel(Config(), *model)), "config.yaml", {});
    ASSERT_TRUE(read.ok()) << read.status() << json;
    models::ModelConfig again = ToModelConfig(*read);
    for (int64_t layer = 0; layer < model->num_layers; ++layer) {
      EXPECT_EQ(again.IsMoeLayer(layer), model->IsMoeLayer(layer)) << json;
    }
    again.layer_is_moe = model->layer_is_moe;  // empty is all
    EXPECT_TRUE(again == *model) << json;
    ++accepted;
  };
  for (const char* name : {"llama_llama3_rope", "mixtral_window5", "qwen3_moe_window_yarn",
                           "qwen3_moe_mlp_only", "olmoe_gqa_clip"}) {
    const nlohmann::json config = ReadRawHf(HfGoldenPath(name, "hf")).config;
    for (const nlohmann::json& value : values) {
      for (const auto& item : config.items()) {
        if (item.key() == "model_type") continue;
        nlohmann::json changed = config;
        changed[item.key()] = value;
        check(changed);
      }
      for (const auto& item : config["rope_parameters"].items()) {
        nlohmann::json changed = config;
        changed["rope_parameters"][item.key()] = value;
        check(changed);
      }
    }
  }
  EXPECT_GT(accepted, 300);
  EXPECT_GT(refused, 300);
}

}  // namespace
}  // namespace meshfold::train
