#include "train/commands/loaded_model.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "parallel/checkpoint.h"
#include "parallel/train_state.h"
#include "train/checkpoint_path.h"

namespace meshfold::train {
namespace {

// A checkpoint's layout is that of the run that wrote it; this world has its own.
std::vector<std::string> WithoutLayout(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {
      "parallel.data=auto", "parallel.tensor=1",        "parallel.sequence=false",
      "parallel.expert=1",  "parallel.expert_tensor=1", "parallel.pipeline=1",
      "parallel.context=1", "parallel.ulysses=1",       "parallel.zero.stage=0"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

// What both sources share, from the config on.
absl::StatusOr<LoadedModel> Prepare(const Config& config, const World& world) {
  MF_ASSIGN_OR_RETURN(const parallel::RankLayout ranks,
                      LayoutOf(config, world.communicator->size()));
  MF_RETURN_IF_ERROR(CheckKnownAxes(config));
  MF_ASSIGN_OR_RETURN(parallel::Meshes meshes, parallel::Meshes::Create(world.communicator, ranks));
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                      Runtime::Create(RuntimeOf(config, world.ranks_on_node)));
  return LoadedModel{config, std::move(runtime), std::move(meshes), {}};
}

absl::StatusOr<LoadedModel> FromHf(const ModelSource& source, const World& world) {
  std::vector<std::string> overrides = {absl::StrCat("model.hf=", source.hf)};
  overrides.insert(overrides.end(), source.overrides.begin(), source.overrides.end());
  MF_ASSIGN_OR_RETURN(const Config config, ParseConfig("", "--hf", overrides));
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, Prepare(config, world));
  ScopedExecContext scope(loaded.runtime->context());
  MF_ASSIGN_OR_RETURN(loaded.model, BuildModel(loaded.config, 0, &loaded.meshes));
  return loaded;
}

absl::StatusOr<LoadedModel> FromCheckpoint(const ModelSource& source, const World& world) {
  MF_ASSIGN_OR_RETURN(std::string directory, ResolveCheckpoint(source.checkpoint));
  MF_ASSIGN_OR_RETURN(parallel::Checkpoint checkpoint, parallel::Checkpoint::Open(directory));
  MF_ASSIGN_OR_RETURN(const Config config, ParseConfig(checkpoint.state().config_yaml,
                                                       JoinPath(directory, "config.yaml"),
                                                       WithoutLayout(source.overrides)));
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, Prepare(config, world));
  ScopedExecContext scope(loaded.runtime->context());
  MF_ASSIGN_OR_RETURN(loaded.model, BuildModelOutline(loaded.config, 0, &loaded.meshes));
  MF_RETURN_IF_ERROR(
      parallel::LoadTrainingState(directory, *loaded.model.layers, nullptr).status());
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const ModelSource& source, const World& world) {
  if (source.checkpoint.empty() == source.hf.empty()) {
    return absl::InvalidArgumentError("give exactly one of --checkpoint DIR and --hf DIR");
  }
  return source.hf.empty() ? FromCheckpoint(source, world) : FromHf(source, world);
}

}  // namespace meshfold::train
