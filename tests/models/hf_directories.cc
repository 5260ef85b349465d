#include "tests/models/hf_directories.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/match.h"
#include "core/io/elements.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/io/safetensors_dir.h"
#include "models/hf_io.h"
#include "tests/core/io/scratch.h"

namespace meshfold::models {
namespace {

DType TypeInMemory(FileDType dtype) { return TensorTypeOf(dtype).value(); }

std::string BytesOf(const Tensor& tensor, FileDType dtype) {
  std::string bytes;
  MF_EXPECT_OK(WriteElements(tensor, dtype, [&](absl::Span<const char> piece) {
    bytes.append(piece.data(), piece.size());
    return absl::OkStatus();
  }));
  return bytes;
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

}  // namespace

std::vector<std::string> HfGoldenCases() {
  std::vector<std::string> names = ListDirectory(kHfGoldens).value(), cases;
  for (const std::string& name : names) {
    if (IsDirectory(JoinPath(kHfGoldens, name))) cases.push_back(name);
  }
  return cases;
}

std::string HfGoldenPath(const std::string& name, const std::string& file) {
  return JoinPath(JoinPath(kHfGoldens, name), file);
}

RawHf ReadRawHf(const std::string& directory) {
  RawHf contents;
  contents.config = ReadJsonFile(JoinPath(directory, "config.json")).value();
  SafetensorsDir tensors = SafetensorsDir::Open(directory).value();
  for (const std::string& name : tensors.names()) {
    SafetensorsInfo info = tensors.info(name).value();
    absl::Span<const char> bytes = tensors.FileOf(name).value()->bytes(name).value();
    contents.tensors[name] = {info.dtype, info.shape, std::string(bytes.begin(), bytes.end())};
  }
  return contents;
}

void WriteRawHf(const std::string& directory, const RawHf& contents) {
  MF_ASSERT_OK(MakeDirs(directory));
  MF_ASSERT_OK(WriteFile(JoinPath(directory, "config.json"), contents.config.dump(2)));
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : contents.tensors) {
    specs.push_back({name, tensor.dtype, tensor.shape});
  }
  auto writer = SafetensorsWriter::Create(JoinPath(directory, "model.safetensors"), specs);
  MF_ASSERT_OK(writer);
  for (const TensorSpec& spec : (*writer)->order()) {
    MF_ASSERT_OK((*writer)->AppendBytes(spec.name, contents.tensors.at(spec.name).bytes));
  }
  MF_ASSERT_OK((*writer)->Close());
}

void ConvertTensors(RawHf& contents, FileDType dtype, const std::string& part) {
  for (auto& [name, tensor] : contents.tensors) {
    if (!absl::StrContains(name, part)) continue;
    Tensor values =
        Tensor::Contiguous(Shape(tensor.shape), TypeInMemory(tensor.dtype), SystemHostAllocator());
    MF_ASSERT_OK(ReadElements(tensor.dtype, tensor.bytes.data(), values));
    tensor.bytes = BytesOf(values, dtype);
    tensor.dtype = dtype;
  }
}

void ExpectSameTensors(const RawHf& actual, const RawHf& expected) {
  EXPECT_GT(expected.tensors.size(), 10u);
  for (const auto& [name, tensor] : expected.tensors) {
    auto found = actual.tensors.find(name);
    if (found == actual.tensors.end()) {
      ADD_FAILURE() << name << " is missing";
      continue;
    }
    EXPECT_EQ(FileDTypeName(found->second.dtype), FileDTypeName(tensor.dtype)) << name;
    EXPECT_EQ(found->second.shape, tensor.shape) << name;
    EXPECT_TRUE(found->second.bytes == tensor.bytes) << name << " has other bits";
  }
  for (const auto& entry : actual.tensors) {
    EXPECT_EQ(expected.tensors.count(entry.first), 1u) << entry.first << " is new";
  }
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

}  // namespace meshfold::models
