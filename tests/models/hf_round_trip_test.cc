// Hugging Face -> our parameters -> Hugging Face: the same names, types and bits, and a config.json
// that means the same. What transformers loaded before it loads after.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "core/io/json.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::models {
namespace {

// Reads `in` into a model and writes it to `out`.
void PassThrough(const std::string& in, const std::string& out, const HfWriteOptions& options) {
  absl::StatusOr<HfDirectory> directory = OpenHf(in);
  MF_ASSERT_OK(directory);
  auto model = BuildDecoder(directory->config);
  MF_ASSERT_OK(model);
  MF_ASSERT_OK(LoadHfWeights(*directory, **model, HfDType::kOfFile));
  MF_ASSERT_OK(WriteHf(out, directory->config, **model, options));
}

class HfRoundTripTest : public ScratchTest {
 protected:
  std::string out() const { return Path("out"); }
  testing::ScopedTestContext context_;
};

class HfGoldenRoundTripTest : public HfRoundTripTest,
                              public ::testing::WithParamInterface<std::string> {};

TEST_P(HfGoldenRoundTripTest, KeepsEveryTensorAndTheMeaningOfTheConfig) {
  std::string golden = HfGoldenPath(GetParam(), "hf");
  PassThrough(golden, out(), {});
  ExpectSameTensors(ReadRawHf(out()), ReadRawHf(golden));
  ExpectSameMeaning(out(), golden);
}

// Also from 16-bit files, whose values must not have been anything else on the way.
TEST_P(HfGoldenRoundTripTest, KeepsSixteenBitTensors) {
  RawHf source = ReadRawHf(HfGoldenPath(GetParam(), "hf"));
  for (FileDType dtype : {FileDType::kBF16, FileDType::kF16}) {
    ConvertTensors(source, dtype);
    source.config["dtype"] = dtype == FileDType::kBF16 ? "bfloat16" : "float16";
    WriteRawHf(Path("in"), source);
    PassThrough(Path("in"), out(), {});
    ExpectSameTensors(ReadRawHf(out()), source);
    ExpectSameMeaning(out(), Path("in"));
  }
}

TEST_P(HfGoldenRoundTripTest, WritesShardsThatReadBack) {
  constexpr int64_t kShardBytes = 9000;
  std::string golden = HfGoldenPath(GetParam(), "hf");
  PassThrough(golden, out(), {.max_shard_bytes = kShardBytes});
  RawHf written = ReadRawHf(out());
  ExpectSameTensors(written, ReadRawHf(golden));

  nlohmann::json index = ReadJsonFile(JoinPath(out(), "model.safetensors.index.json")).value();
  std::map<std::string, int64_t> shard_bytes, shard_tensors;
  int64_t total = 0;
  for (const auto& [name, tensor] : written.tensors) {
    std::string shard = index["weight_map"].value(name, "");
    ASSERT_TRUE(FileExists(JoinPath(out(), shard))) << name << " in '" << shard << "'";
    shard_bytes[shard] += static_cast<int64_t>(tensor.bytes.size());
    ++shard_tensors[shard];
    total += static_cast<int64_t>(tensor.bytes.size());
  }
  EXPECT_EQ(index["weight_map"].size(), written.tensors.size());
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_GT(shard_bytes.size(), 2u);
  for (const auto& [shard, bytes] : shard_bytes) {
    EXPECT_TRUE(bytes <= kShardBytes || shard_tensors[shard] == 1) << shard << ": " << bytes;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, HfGoldenRoundTripTest, ::testing::ValuesIn(HfGoldenCases()),
                         [](const auto& info) { return info.param; });

// Split to fused and fused to split, each against what transformers itself writes.
TEST_F(HfRoundTripTest, SplitAndFusedExpertsBecomeEachOther) {
  for (const std::string name : {"mixtral_gqa", "qwen3_moe_norm_k3"}) {
    std::string split = HfGoldenPath(name, "hf"), fused = HfGoldenPath(name, "hf_fused");
    RawHf raw_split = ReadRawHf(split), raw_fused = ReadRawHf(fused);
    ASSERT_NE(raw_split.tensors.size(), raw_fused.tensors.size());
    for (const std::string& source : {split, fused}) {
      PassThrough(source, out(), {.expert_form = HfExpertForm::kSplit});
      ExpectSameTensors(ReadRawHf(out()), raw_split);
      ExpectSameMeaning(out(), split);
      PassThrough(source, out(), {.expert_form = HfExpertForm::kFused});
      ExpectSameTensors(ReadRawHf(out()), raw_fused);
      ExpectSameMeaning(out(), fused);
    }
  }
}

// A parameter of ours may be several tensors there, of different types: f32 holds them all exactly.
TEST_F(HfRoundTripTest, PartsOfDifferentTypesMeetInF32) {
  RawHf source = ReadRawHf(HfGoldenPath("qwen3_moe_norm_k3", "hf"));
  ConvertTensors(source, FileDType::kBF16, "up_proj");
  WriteRawHf(Path("in"), source);
  PassThrough(Path("in"), out(), {});
  ConvertTensors(source, FileDType::kF32);
  ExpectSameTensors(ReadRawHf(out()), source);
}

// What a run asks for: its own storage, routers in f32 whatever that is.
TEST_F(HfRoundTripTest, LoadsIntoTheTypeOfTheParameters) {
  HfDirectory directory = OpenHf(HfGoldenPath("mixtral_gqa", "hf")).value();
  auto model = BuildDecoder(directory.config).value();
  model->VisitParameters([](Parameter& parameter) {
    bool is_gate = absl::StrContains(parameter.name, ".gate.");
    parameter.dtype = is_gate ? DType::kF32 : DType::kBF16;
  });
  MF_ASSERT_OK(LoadHfWeights(directory, *model, HfDType::kOfParameter));
  MF_ASSERT_OK(WriteHf(out(), directory.config, *model, {}));
  RawHf expected = ReadRawHf(HfGoldenPath("mixtral_gqa", "hf"));
  ConvertTensors(expected, FileDType::kBF16);
  for (const char* layer : {"0", "1"}) {
    std::string gate = absl::StrCat("model.layers.", layer, ".block_sparse_moe.gate.weight");
    expected.tensors.at(gate) = ReadRawHf(HfGoldenPath("mixtral_gqa", "hf")).tensors.at(gate);
  }
  ExpectSameTensors(ReadRawHf(out()), expected);
  EXPECT_EQ(ReadRawHf(out()).config["dtype"], "bfloat16");
}

// A bf16 file through a bf16 run: the routers, f32 in between, are written as they came; one that
// has learned since is written whole.
TEST_F(HfRoundTripTest, RoutersAreWrittenInTheModelsTypeWhereItHoldsThem) {
  RawHf source = ReadRawHf(HfGoldenPath("mixtral_gqa", "hf"));
  for (FileDType dtype : {FileDType::kBF16, FileDType::kF16}) {
    ConvertTensors(source, dtype);
    WriteRawHf(Path("in"), source);
    HfDirectory directory = OpenHf(Path("in")).value();
    auto model = BuildDecoder(directory.config).value();
    Tensor gate;
    for (Parameter* parameter : ParametersOf(*model)) {
      const bool is_gate = absl::StrContains(parameter->name, ".gate.");
      if (!is_gate) parameter->dtype = dtype == FileDType::kBF16 ? DType::kBF16 : DType::kF16;
    }
    MF_ASSERT_OK(LoadHfWeights(directory, *model, HfDType::kOfParameter));
    MF_ASSERT_OK(WriteHf(out(), directory.config, *model, {}));
    ExpectSameTensors(ReadRawHf(out()), source);

    for (Parameter* parameter : ParametersOf(*model)) {
      if (parameter->name == "layers.1.moe.gate.weight") gate = parameter->value.data();
    }
    gate.row<float>(3)[31] = 1.00001f;
    MF_ASSERT_OK(WriteHf(out(), directory.config, *model, {}));
    RawHf written = ReadRawHf(out());
    RawTensor learned = written.tensors.at("model.layers.1.block_sparse_moe.gate.weight");
    ASSERT_EQ(learned.dtype, FileDType::kF32);
    EXPECT_EQ(learned.bytes, std::string(static_cast<char*>(gate.raw()), gate.nbytes()));
    EXPECT_EQ(written.tensors.at("model.layers.0.block_sparse_moe.gate.weight").dtype, dtype);
  }
}

// Old exports carry the head of a tied model; ours, as transformers', do not.
TEST_F(HfRoundTripTest, ATiedHeadInTheFileIsTakenAndNotWritten) {
  RawHf source = ReadRawHf(HfGoldenPath("llama_mqa_tied", "hf"));
  RawHf with_head = source;
  with_head.tensors["lm_head.weight"] = source.tensors.at("model.embed_tokens.weight");
  WriteRawHf(Path("in"), with_head);
  PassThrough(Path("in"), out(), {});
  ExpectSameTensors(ReadRawHf(out()), source);
  ExpectSameMeaning(out(), Path("in"));
}

// Buffers that no parameter is made from.
TEST_F(HfRoundTripTest, OldRotaryBuffersAreLeftOut) {
  RawHf source = ReadRawHf(HfGoldenPath("llama_gqa", "hf"));
  RawHf with_buffer = source;
  with_buffer.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      FileDType::kF32, {5}, std::string(20, 'x')};
  WriteRawHf(Path("in"), with_buffer);
  PassThrough(Path("in"), out(), {});
  ExpectSameTensors(ReadRawHf(out()), source);
}

// rope_theta and rope_scaling, torch_dtype, num_experts: checkpoints before transformers 5.
TEST_F(HfRoundTripTest, LegacyConfigsMeanTheSame) {
  int cases = 0;
  for (const std::string& name : HfGoldenCases()) {
    std::string legacy = HfGoldenPath(name, "config_legacy.json");
    if (!FileExists(legacy)) continue;
    RawHf source = ReadRawHf(HfGoldenPath(name, "hf"));
    source.config = ReadJsonFile(legacy).value();
    ASSERT_TRUE(source.config.contains("rope_scaling") && !source.config.contains("dtype"));
    WriteRawHf(Path("in"), source);
    EXPECT_TRUE(ReadHfConfig(Path("in")).value() == ReadHfConfig(HfGoldenPath(name, "hf")).value())
        << name;
    PassThrough(Path("in"), out(), {});
    ExpectSameTensors(ReadRawHf(out()), source);
    ExpectSameMeaning(out(), HfGoldenPath(name, "hf"));
    ++cases;
  }
  EXPECT_GE(cases, 3);
}

// Where the key is absent transformers takes a default of the class: an end token, or a padding id
// whose embedding gets no gradient.
TEST_F(HfRoundTripTest, SpecialTokensAreKeptAndNeverLeftToADefault) {
  RawHf source = ReadRawHf(HfGoldenPath("olmoe_mha_raw", "hf"));
  source.config.update({{"bos_token_id", 3}, {"pad_token_id", 1}, {"eos_token_id", {7, 9}}});
  WriteRawHf(Path("in"), source);
  PassThrough(Path("in"), out(), {});
  ExpectSameMeaning(out(), Path("in"));
  source.config["eos_token_id"] = 7;
  source.config.erase("bos_token_id");
  source.config.erase("pad_token_id");
  WriteRawHf(Path("in"), source);
  PassThrough(Path("in"), out(), {});
  nlohmann::json written = ReadRawHf(out()).config;
  EXPECT_EQ(written["eos_token_id"], 7);
  EXPECT_TRUE(written.contains("pad_token_id") && written["pad_token_id"].is_null());
  EXPECT_TRUE(written.contains("bos_token_id") && written["bos_token_id"].is_null());
}

}  // namespace
}  // namespace meshfold::models
