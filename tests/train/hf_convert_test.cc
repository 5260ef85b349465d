// `meshfold convert` to a checkpoint and back: what a user's Hugging Face directory goes through,
// its config as YAML on the way.
#include <string>

#include "gtest/gtest.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"
#include "train/commands/commands.h"

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

}  // namespace
}  // namespace meshfold::train
