// Hugging Face directories as plain data, for tests that compare or damage them: no tensor type of
// ours stands between a test and the bytes of a file.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/io/file_dtype.h"
#include "nlohmann/json.hpp"

namespace meshfold::models {

// The cases of tests/goldens/hf.
inline constexpr char kHfGoldens[] = "tests/goldens/hf";
std::vector<std::string> HfGoldenCases();
// tests/goldens/hf/<name>/<file>
std::string HfGoldenPath(const std::string& name, const std::string& file);

struct RawTensor {
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  std::string bytes;

  bool operator==(const RawTensor&) const = default;
};

struct RawHf {
  nlohmann::json config;
  std::map<std::string, RawTensor> tensors;
};

// config.json and all tensors, of one file or shards. A directory that cannot be read is a failure
// of the test.
RawHf ReadRawHf(const std::string& directory);

// Writes config.json and model.safetensors.
void WriteRawHf(const std::string& directory, const RawHf& contents);

// The same values in another type, the nearest ones; all tensors or, given a part of their names,
// some.
void ConvertTensors(RawHf& contents, FileDType dtype, const std::string& part = "");

// Fails, naming each, for tensors that only one has or that differ in type, shape or bits.
void ExpectSameTensors(const RawHf& actual, const RawHf& expected);

// Fails unless both config.json describe one model, to us and, key by key, to transformers. Left
// out are keys that say nothing about the model.
void ExpectSameMeaning(const std::string& actual_dir, const std::string& expected_dir);

}  // namespace meshfold::models
