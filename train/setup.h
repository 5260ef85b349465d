// From a config to the parts of a run: model, weights, data.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/loader.h"
#include "core/data/tokenizer.h"
#include "core/nn/layer_stack.h"
#include "models/family.h"
#include "models/model_config.h"
#include "train/config.h"
#include "train/runtime.h"

namespace meshfold::train {

// A model with the family that names its tensors. Parameters have tensors.
struct BuiltModel {
  models::ModelConfig config;
  models::Family family;
  std::unique_ptr<LayerStack> layers;
  int64_t num_parameters = 0;
};

// Builds what `config.model` describes and initialises it from the seed, or takes architecture and
// weights from the Hugging Face directory config.model.hf. `data_vocab`: vocabulary of the data,
// used when config.model.vocab_size is 0. Runs in the current context.
absl::StatusOr<BuiltModel> BuildModel(const Config& config, int64_t data_vocab);

// The same without weights, for loading a checkpoint: parameters are allocated only.
absl::StatusOr<BuiltModel> BuildModelOutline(const Config& config, int64_t data_vocab);

// The tokenizer that config.data names; null for "none" (token files).
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const Config& config);

struct BuiltData {
  std::unique_ptr<Loader> loader;
  int64_t vocab_size = 0;  // largest id of the sources + 1, or the tokenizer's
};

// Opens the sources of config.data for data part `part` of `num_parts`. Errors name the source.
absl::StatusOr<BuiltData> BuildData(const Config& config, int64_t part, int64_t num_parts);

// The runtime that config.runtime and config.memory ask for.
RuntimeOptions RuntimeOf(const Config& config);

// Micro-batches of a step: global_batch_size / (micro_batch_size * data parts).
int64_t NumMicroBatches(const Config& config, int64_t num_data_parts);

}  // namespace meshfold::train
