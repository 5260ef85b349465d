#include "train/setup.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/nn/init.h"
#include "models/decoder.h"
#include "models/hf_io.h"
#include "parallel/stage.h"

namespace meshfold::train {
namespace {

// The architecture alone: of the Hugging Face directory or of the config's own keys.
absl::StatusOr<models::ModelConfig> Architecture(const Config& config, int64_t data_vocab) {
  models::ModelConfig model = ToModelConfig(config);
  if (!config.model.hf.empty()) {
    models::ModelConfig run_choices = model;
    MF_ASSIGN_OR_RETURN(model, models::ReadHfConfig(config.model.hf));
    // What a file does not decide: how this run trains it.
    model.moe.aux_loss_coefficient = run_choices.moe.aux_loss_coefficient;
    model.moe.z_loss_coefficient = run_choices.moe.z_loss_coefficient;
    model.moe.capacity_factor = run_choices.moe.capacity_factor;
    model.moe.dispatcher = run_choices.moe.dispatcher;
  }
  if (model.vocab_size == 0) model.vocab_size = data_vocab;
  if (model.vocab_size == 0) {
    return absl::InvalidArgumentError(
        "model.vocab_size is 0 and no data says its vocabulary: set data.source, or "
        "model.vocab_size where batches come from elsewhere");
  }
  if (data_vocab > model.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("the data's vocabulary has ", data_vocab,
                                                   " ids, the model's ", model.vocab_size));
  }
  return model;
}

absl::StatusOr<BuiltModel> BuildLayers(const Config& run, int64_t data_vocab,
                                       const parallel::Meshes* meshes) {
  BuiltModel built;
  MF_ASSIGN_OR_RETURN(built.config, Architecture(run, data_vocab));
  MF_ASSIGN_OR_RETURN(built.family, models::FamilyRegistry().Find(built.config.family));
  MF_ASSIGN_OR_RETURN(built.layers, models::BuildDecoder(built.config));
  built.layers->VisitParameters([&](Parameter& parameter) {
    built.num_parameters += parameter.shape.numel();
    // Router weights stay f32: rounded logits flip choices.
    bool is_gate = absl::StrContains(parameter.name, ".gate.");
    if (parameter.trained && !is_gate) parameter.dtype = run.model.dtype;
  });
  if (meshes != nullptr) {
    MF_RETURN_IF_ERROR(parallel::ApplyAxes({.layers = *built.layers,
                                            .meshes = *meshes,
                                            .options = {.sequence = run.parallel.sequence}}));
  }
  return built;
}

}  // namespace

absl::Status CheckKnownAxes(const Config& config) {
  const auto check = [](absl::string_view key, int64_t size) {
    if (size <= 1) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("parallel.", key, " is ", size, "; this version has no such axis"));
  };
  const ParallelSection& p = config.parallel;
  MF_RETURN_IF_ERROR(check("pipeline", p.pipeline));
  MF_RETURN_IF_ERROR(check("context", p.context));
  MF_RETURN_IF_ERROR(check("ulysses", p.ulysses));
  if (p.zero_stage > 0) {
    return absl::UnimplementedError(absl::StrCat("parallel.zero.stage is ", p.zero_stage,
                                                 "; this version keeps whole optimizer states"));
  }
  return absl::OkStatus();
}

int64_t NumMicroBatches(const Config& config) {
  if (config.train.micro_batch_size == 0) return 1;
  return config.train.global_batch_size / config.train.micro_batch_size;
}

RuntimeOptions RuntimeOf(const Config& config, int ranks_on_node) {
  RuntimeOptions options;
  options.threads = static_cast<int>(config.runtime.threads);
  if (options.threads == 0) options.threads = std::max(1, NumUsableCores() / ranks_on_node);
  options.device_limit = config.memory.device_limit;
  return options;
}

absl::StatusOr<BuiltModel> BuildModelOutline(const Config& config, int64_t data_vocab,
                                             const parallel::Meshes* meshes) {
  MF_ASSIGN_OR_RETURN(BuiltModel built, BuildLayers(config, data_vocab, meshes));
  MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {  // the pool may be too small
    built.layers->VisitParameters([](Parameter& parameter) { Allocate(parameter); });
  }));
  return built;
}

absl::StatusOr<BuiltModel> BuildModel(const Config& config, int64_t data_vocab,
                                      const parallel::Meshes* meshes) {
  MF_ASSIGN_OR_RETURN(BuiltModel built, BuildLayers(config, data_vocab, meshes));
  if (config.model.hf.empty()) {
    MF_RETURN_IF_ERROR(parallel::CatchStatus(
        [&] { Initialize(*built.layers, static_cast<uint64_t>(config.run.seed)); }));
    return built;
  }
  MF_ASSIGN_OR_RETURN(models::HfDirectory directory, models::OpenHf(config.model.hf));
  MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
    ThrowIfError(models::LoadHfWeights(directory, *built.layers, models::HfDType::kOfParameter));
  }));
  return built;
}

absl::StatusOr<std::vector<WeightedDataset>> OpenDatasets(const Config& config) {
  std::vector<DataSource> sources = config.data.sources;
  if (!config.data.source.empty()) sources.push_back({config.data.source, 1.0});
  std::vector<WeightedDataset> datasets;
  for (const DataSource& source : sources) {
    MF_ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> dataset, OpenDataset(source.path));
    datasets.push_back({std::move(dataset), source.weight});
  }
  return datasets;
}

int64_t VocabSizeOf(const std::vector<WeightedDataset>& datasets) {
  int64_t size = 0;
  for (const WeightedDataset& d : datasets) size = std::max(size, d.dataset->vocab_size());
  return size;
}

absl::StatusOr<std::unique_ptr<Loader>> BuildLoader(const Config& config,
                                                    std::vector<WeightedDataset> datasets,
                                                    int64_t vocab_size, int64_t part,
                                                    int64_t num_parts) {
  if (datasets.empty()) return std::unique_ptr<Loader>();
  LoaderOptions options;
  options.packing = {
      .seq_length = config.data.sequence_length,
      .mode = config.data.packing == "document" ? PackingMode::kDocument : PackingMode::kStream,
      .document_mask = config.data.document_mask};
  options.global_batch_size = config.train.global_batch_size;
  options.num_micro_batches = NumMicroBatches(config);
  options.data_part = part;
  options.num_data_parts = num_parts;
  options.seed = static_cast<uint64_t>(config.run.seed);
  options.shuffle = config.data.shuffle;
  options.validation_fraction = config.data.validation_fraction;
  options.split_by = config.data.validation_by == "block" ? SplitBy::kBlock : SplitBy::kDocument;
  options.vocab_size = vocab_size;
  return Loader::Create(std::move(datasets), options);
}

}  // namespace meshfold::train
