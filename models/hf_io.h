// Hugging Face model directories: config.json and safetensors, read into and written from a model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/io/safetensors_dir.h"
#include "core/nn/module.h"
#include "models/family.h"
#include "models/hf_names.h"
#include "models/model_config.h"

namespace meshfold::models {

// An opened directory. Its files stay mapped while it lives.
struct HfDirectory {
  std::string path;
  ModelConfig config;
  Family family;
  HfExpertForm expert_form = HfExpertForm::kSplit;  // as found in the files
  SafetensorsDir tensors;
};

// Opens `path` and reads its config. InvalidArgument for an unknown model_type (naming the known
// ones) or a config that does not validate; NotFound when files are missing.
absl::StatusOr<HfDirectory> OpenHf(const std::string& path);

// Reads only config.json.
absl::StatusOr<ModelConfig> ReadHfConfig(const std::string& path);

// Storage of loaded parameters: the type of the tensors in the file (f32, bf16 or f16; f32 where
// one parameter is made of different ones), or what Parameter::dtype already says.
enum class HfDType { kOfFile, kOfParameter };

// Allocates every parameter of `model` (built from directory.config) and fills it; of one that is a
// part, that part, by way of the whole tensor in host memory, one at a time. InvalidArgument
// lists tensors that are missing, have another shape, or belong to no parameter. A tied model's
// lm_head, when a file has one, must equal the embedding.
absl::Status LoadHfWeights(const HfDirectory& directory, Module& model, HfDType dtype);

struct HfWriteOptions {
  HfExpertForm expert_form = HfExpertForm::kSplit;
  int64_t max_shard_bytes = 5'000'000'000;
};

// Writes config.json and the weights of `model`; what OpenHf and transformers read back. Tensors
// keep their values, and their types but for f32 tensors in a 16-bit model (routers): those have
// the model's type where that holds every value, as in the files they came from.
absl::Status WriteHf(const std::string& path, const ModelConfig& config, Module& model,
                     const HfWriteOptions& options);

}  // namespace meshfold::models
