// Hugging Face -> our parameters -> Hugging Face: the same names, types and bits, and a config.json
// that means the same. What transformers loaded before it loads after.
#include <map>
#include <set>
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

// Keys of transformers that say nothing about the model or are said in another way.
bool MayChange(const std::string& key) {
  static const auto* keys = new std::set<std::string>{
      "transformers_version",
      "use_cache",
      "router_aux_loss_coef",  // the coefficient of a training run, there as here
      "router_jitter_noise",
      "pretraining_tp",  // 0 and 1: off
      "num_local_experts",
      "num_experts",  // one thing under two names
      "head_dim",     // null where it follows from the sizes
      "decoder_sparse_step",
      "mlp_only_layers"};
  return keys->count(key) > 0;
}

void ExpectSameMeaning(const std::string& actual_dir, const std::string& expected_dir) {
  EXPECT_TRUE(ReadHfConfig(actual_dir).value() == ReadHfConfig(expected_dir).value());
  nlohmann::json actual = ReadJsonFile(JoinPath(actual_dir, "config.json")).value();
  nlohmann::json expected = ReadJsonFile(JoinPath(expected_dir, "config.json")).value();
  for (const auto& [key, value] : expected.items()) {
    if (MayChange(key)) continue;
    EXPECT_TRUE(actual.contains(key)) << key;
    if (!value.is_object()) {
      EXPECT_EQ(actual[key], value) << key;
      continue;
    }
    for (const auto& [inner, inner_value] : value.items()) {  // rope_parameters
      EXPECT_EQ(actual[key].value(inner, nlohmann::json()), inner_value) << key << "." << inner;
    }
  }
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
  source.config["bos_token_id"] = 3;
  source.config["pad_token_id"] = 1;
  source.config["eos_token_id"] = {7, 9};
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
