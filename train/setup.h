// From a config to the parts of a run: model, weights, data.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/loader.h"
#include "core/nn/layer_stack.h"
#include "models/family.h"
#include "models/model_config.h"
#include "parallel/axis.h"
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

// Unimplemented, naming the key and its value, where `config` asks for an axis that this version
// does not have.
absl::Status CheckKnownAxes(const Config& config);

// Builds what `config.model` describes and initialises it from the seed, or takes architecture and
// weights from the Hugging Face directory config.model.hf. `data_vocab`: vocabulary of the data,
// used when config.model.vocab_size is 0; itself 0 when unknown. Runs in the current context.
// With `meshes`: this rank's part of it, with every registered axis applied; collective.
absl::StatusOr<BuiltModel> BuildModel(const Config& config, int64_t data_vocab,
                                      const parallel::Meshes* meshes = nullptr);

// The same without weights, for loading a checkpoint: parameters are allocated only.
absl::StatusOr<BuiltModel> BuildModelOutline(const Config& config, int64_t data_vocab,
                                             const parallel::Meshes* meshes = nullptr);

// Opens the sources of config.data; none where the caller brings batches. Errors name the source.
absl::StatusOr<std::vector<WeightedDataset>> OpenDatasets(const Config& config);

// The largest vocabulary that one of the datasets was made with; 0 where none says it.
int64_t VocabSizeOf(const std::vector<WeightedDataset>& datasets);

// Batches of data part `part` of `num_parts`, whose ids are below `vocab_size`; null without
// datasets.
absl::StatusOr<std::unique_ptr<Loader>> BuildLoader(const Config& config,
                                                    std::vector<WeightedDataset> datasets,
                                                    int64_t vocab_size, int64_t part,
                                                    int64_t num_parts);

// The runtime that config.runtime and config.memory ask for. runtime.threads 0: an equal share of
// the usable cores for each of the `ranks_on_node`, at least one.
RuntimeOptions RuntimeOf(const Config& config, int ranks_on_node = 1);

// Micro-batches of a step, the same on any number of ranks: global_batch_size / micro_batch_size.
int64_t NumMicroBatches(const Config& config);

}  // namespace meshfold::train
