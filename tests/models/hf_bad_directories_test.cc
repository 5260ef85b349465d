// Hugging Face directories that cannot be loaded: each is refused with one sentence that names the
// place and both values. What the files themselves may do wrong is tested in tests/core/io.
#include <cstring>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"
#include "tests/models/hf_directories.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::models {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::Status LoadAll(const std::string& path) {
  absl::StatusOr<HfDirectory> directory = OpenHf(path);
  if (!directory.ok()) return directory.status();
  absl::StatusOr<std::unique_ptr<LayerStack>> model = BuildDecoder(directory->config);
  if (!model.ok()) return model.status();
  return LoadHfWeights(*directory, **model, HfDType::kOfFile);
}

class HfBadDirectoriesTest : public ScratchTest {
 protected:
  // The golden case `name`, changed by `damage`.
  absl::Status Load(const std::string& name, const std::function<void(RawHf&)>& damage) {
    RawHf contents = ReadRawHf(HfGoldenPath(name, "hf"));
    damage(contents);
    WriteRawHf(Path("hf"), contents);
    absl::Status status = LoadAll(Path("hf"));
    if (!status.ok()) ExpectOneSentenceWithPlace(status);
    return status;
  }
  void ExpectOneSentenceWithPlace(const absl::Status& status) {
    EXPECT_TRUE(absl::StrContains(status.message(), Path("hf"))) << status;
    EXPECT_FALSE(absl::StrContains(status.message(), "\n")) << status;
  }
  // The same with one key of config.json.
  absl::Status LoadWith(const std::string& name, const std::string& key, nlohmann::json value) {
    return Load(name, [&](RawHf& hf) { hf.config[key] = std::move(value); });
  }

  testing::ScopedTestContext context_;
};

TEST_F(HfBadDirectoriesTest, UndamagedOnesLoad) {
  MF_EXPECT_OK(Load("qwen3_moe_norm_k3", [](RawHf&) {}));
}

TEST_F(HfBadDirectoriesTest, MissingTensorsAreNamed) {
  absl::Status status = Load("qwen3_moe_norm_k3", [](RawHf& hf) {
    hf.tensors.erase("model.layers.1.mlp.experts.3.up_proj.weight");
    hf.tensors.erase("lm_head.weight");
  });
  EXPECT_TRUE(FailsWith(status, kInvalid,
                        "missing: model.layers.1.mlp.experts.3.up_proj.weight, lm_head.weight"));
}

TEST_F(HfBadDirectoriesTest, LongListsAreCut) {
  absl::Status status = Load("qwen3_moe_norm_k3", [](RawHf& hf) {
    std::erase_if(hf.tensors, [](const auto& entry) {
      return absl::StrContains(entry.first, "layers.0.mlp.experts");
    });
  });
  // 8 experts of 3 tensors; 6 are named.
  EXPECT_TRUE(FailsWith(status, kInvalid, "experts.0.gate_proj.weight"));
  EXPECT_TRUE(FailsWith(status, kInvalid, " and 18 more"));
}

TEST_F(HfBadDirectoriesTest, TensorsThatBelongToNothingAreNamed) {
  absl::Status status = Load("llama_gqa", [](RawHf& hf) {
    hf.tensors["model.layers.2.input_layernorm.weight"] =
        hf.tensors.at("model.layers.1.input_layernorm.weight");
  });
  EXPECT_TRUE(
      FailsWith(status, kInvalid, "not part of the model: model.layers.2.input_layernorm.weight"));
}

TEST_F(HfBadDirectoriesTest, OtherShapesAreNamedWithBoth) {
  absl::Status status = Load("llama_gqa", [](RawHf& hf) {
    hf.tensors.at("model.layers.0.self_attn.k_proj.weight").shape = {40, 20};
  });
  EXPECT_TRUE(FailsWith(status, kInvalid,
                        "'model.layers.0.self_attn.k_proj.weight' in model.safetensors has shape "
                        "[40, 20], the config asks for [20, 40]"));
  // The same number of elements, but a head of one dim less is no head.
  status = Load("llama_gqa", [](RawHf& hf) { hf.tensors.at("lm_head.weight").shape = {97 * 40}; });
  EXPECT_TRUE(FailsWith(status, kInvalid, "[3880], the config asks for [97, 40]"));
}

// Each key that decides about sizes, one off.
TEST_F(HfBadDirectoriesTest, ConfigsOfAnotherModelAreRefused) {
  const auto refused = [&](const std::string& key, nlohmann::json value, absl::string_view part) {
    absl::Status status = LoadWith("qwen3_moe_norm_k3", key, std::move(value));
    EXPECT_TRUE(FailsWith(status, kInvalid, "tensors do not match config.json")) << key;
    EXPECT_TRUE(FailsWith(status, kInvalid, part)) << key;
  };
  refused("vocab_size", 98, "has shape [97, 32], the config asks for [98, 32]");
  refused("hidden_size", 33, "has shape [97, 32], the config asks for [97, 33]");
  refused("num_hidden_layers", 3, "missing: model.layers.2.");
  refused("num_hidden_layers", 1, "not part of the model: model.layers.1.");
  refused("num_attention_heads", 6, "has shape [48, 32], the config asks for [72, 32]");
  refused("num_key_value_heads", 1, "has shape [24, 32], the config asks for [12, 32]");
  refused("head_dim", 8, "has shape [48, 32], the config asks for [32, 32]");
  refused("moe_intermediate_size", 11, "has shape [10, 32], the config asks for [11, 32]");
  refused("num_local_experts", 9, "missing: model.layers.0.mlp.experts.8.");
  refused("num_local_experts", 7, "not part of the model: model.layers.0.mlp.experts.7.");
  refused("mlp_only_layers", {0}, "missing: model.layers.0.mlp.gate_proj.weight");
  refused("attention_bias", true, "missing: model.layers.0.self_attn.q_proj.bias");
  refused("model_type", "olmoe", "model.layers.0.self_attn.q_norm.weight");
  refused("model_type", "mixtral", "block_sparse_moe");
}

TEST_F(HfBadDirectoriesTest, ATiedHeadThatDiffersIsRefused) {
  absl::Status status = Load("llama_mqa_tied", [](RawHf& hf) {
    RawTensor head = hf.tensors.at("model.embed_tokens.weight");
    head.bytes[5] ^= 1;
    hf.tensors["lm_head.weight"] = head;
  });
  EXPECT_TRUE(FailsWith(status, kInvalid,
                        "ties the embeddings, but 'lm_head.weight' in model.safetensors, F32 [61, "
                        "24], is not equal to 'model.embed_tokens.weight'"));
  status = Load("llama_mqa_tied", [](RawHf& hf) {
    RawTensor head = hf.tensors.at("model.embed_tokens.weight");
    head.shape = {24, 61};
    hf.tensors["lm_head.weight"] = head;
  });
  EXPECT_TRUE(FailsWith(status, kInvalid, "F32 [24, 61], is not equal"));
}

TEST_F(HfBadDirectoriesTest, TypesThatAreNoWeightsAreNamed) {
  absl::Status status = Load("llama_gqa", [](RawHf& hf) {
    RawTensor& norm = hf.tensors.at("model.norm.weight");
    norm.dtype = FileDType::kI32;  // as many bytes
  });
  EXPECT_TRUE(FailsWith(status, kInvalid,
                        "'model.norm.weight' in model.safetensors has type I32; weights may be "
                        "F32, BF16 or F16"));
}

TEST_F(HfBadDirectoriesTest, MissingFilesAreNamed) {
  EXPECT_TRUE(FailsWith(LoadAll(Path("nowhere")), absl::StatusCode::kNotFound,
                        Path("nowhere/config.json")));
  MF_ASSERT_OK(Load("llama_gqa", [](RawHf&) {}));
  MF_ASSERT_OK(RemoveTree(Path("hf/model.safetensors")));
  absl::Status status = LoadAll(Path("hf"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kNotFound,
                        "neither model.safetensors nor model.safetensors.index.json"));
  ExpectOneSentenceWithPlace(status);
  MF_ASSERT_OK(RemoveTree(Path("hf/config.json")));
  status = LoadAll(Path("hf"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kNotFound, Path("hf/config.json")));
}

// A copy that was cut short, and shards that are not all there.
TEST_F(HfBadDirectoriesTest, IncompleteCopiesAreNamed) {
  HfDirectory whole = OpenHf(HfGoldenPath("llama_gqa", "hf")).value();
  auto model = BuildDecoder(whole.config).value();
  MF_ASSERT_OK(LoadHfWeights(whole, *model, HfDType::kOfFile));
  MF_ASSERT_OK(WriteHf(Path("hf"), whole.config, *model, {.max_shard_bytes = 30'000}));
  MF_ASSERT_OK(LoadAll(Path("hf")));
  std::string shard = Path("hf/model-00002-of-00005.safetensors");
  std::string bytes = ReadFile(shard).value();
  MF_ASSERT_OK(WriteFile(shard, absl::string_view(bytes).substr(0, bytes.size() - 1)));
  absl::Status status = LoadAll(Path("hf"));
  EXPECT_TRUE(FailsWith(status, kInvalid, shard));
  ExpectOneSentenceWithPlace(status);
  MF_ASSERT_OK(RemoveTree(shard));
  status = LoadAll(Path("hf"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kNotFound, "model-00002-of-00005.safetensors"));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kNotFound, "index.json', is missing"));
}

// The header of a file, by hand: what must not be believed.
TEST_F(HfBadDirectoriesTest, DamagedHeadersAreNamed) {
  MF_ASSERT_OK(Load("llama_gqa", [](RawHf&) {}));
  std::string path = Path("hf/model.safetensors"), good = ReadFile(path).value();
  uint64_t length = 0;
  std::memcpy(&length, good.data(), 8);
  const auto refused = [&](const std::string& from, const std::string& to, absl::string_view part) {
    std::string header = good.substr(8, length);
    ASSERT_NE(header.find(from), std::string::npos) << from;
    header.replace(header.find(from), from.size(), to);
    uint64_t new_length = header.size();
    std::string bad(reinterpret_cast<const char*>(&new_length), 8);
    MF_ASSERT_OK(WriteFile(path, absl::StrCat(bad, header, good.substr(8 + length))));
    absl::Status status = LoadAll(Path("hf"));
    EXPECT_TRUE(FailsWith(status, kInvalid, part));
    ExpectOneSentenceWithPlace(status);
  };
  // The first tensor of the file: [97, 40] in 15520 bytes.
  constexpr char kHead[] = "\"lm_head.weight\":{\"dtype\":\"";
  refused(absl::StrCat(kHead, "F32"), absl::StrCat(kHead, "I64"), "I64 [97, 40] is 31040 bytes");
  refused("[97,40]", "[97,41]", "'lm_head.weight' at bytes [0, 15520)");
  refused("[0,15520]", "[0,15524]", "F32 [97, 40] is 15520 bytes");
  refused("[0,15520]", "[4,15524]", "a hole before 'lm_head.weight' at bytes [4, 15524)");
  refused("[15520,31040]", "[15516,31036]",
          "lets tensors overlap: puts 'model.embed_tokens.weight'");
  refused(",120160]", ",120164]", "120164) of 120160");

  uint64_t longer = good.size();
  std::string bad = good;
  std::memcpy(bad.data(), &longer, 8);
  MF_ASSERT_OK(WriteFile(path, bad));
  EXPECT_TRUE(FailsWith(LoadAll(Path("hf")), kInvalid,
                        absl::StrCat("'", path, "' announces a header of ", longer,
                                     " bytes, but is ", longer, " bytes long")));
}

}  // namespace
}  // namespace meshfold::models
