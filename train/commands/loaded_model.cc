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

absl::StatusOr<LoadedModel> FromHf(const ModelSource& source) {
  LoadedModel loaded;
  std::vector<std::string> overrides = {absl::StrCat("model.hf=", source.hf)};
  overrides.insert(overrides.end(), source.overrides.begin(), source.overrides.end());
  MF_ASSIGN_OR_RETURN(loaded.config, ParseConfig("", "--hf", overrides));
  MF_RETURN_IF_ERROR(LayoutOf(loaded.config, 1).status());
  MF_ASSIGN_OR_RETURN(loaded.runtime, Runtime::Create(RuntimeOf(loaded.config)));
  ScopedExecContext scope(loaded.runtime->context());
  MF_ASSIGN_OR_RETURN(loaded.model, BuildModel(loaded.config, 0));
  return loaded;
}

absl::StatusOr<LoadedModel> FromCheckpoint(const ModelSource& source) {
  LoadedModel loaded;
  MF_ASSIGN_OR_RETURN(std::string directory, ResolveCheckpoint(source.checkpoint));
  MF_ASSIGN_OR_RETURN(parallel::Checkpoint checkpoint, parallel::Checkpoint::Open(directory));
  MF_ASSIGN_OR_RETURN(
      loaded.config, ParseConfig(checkpoint.state().config_yaml, JoinPath(directory, "config.yaml"),
                                 source.overrides));
  MF_RETURN_IF_ERROR(LayoutOf(loaded.config, 1).status());
  MF_ASSIGN_OR_RETURN(loaded.runtime, Runtime::Create(RuntimeOf(loaded.config)));
  ScopedExecContext scope(loaded.runtime->context());
  MF_ASSIGN_OR_RETURN(loaded.model, BuildModelOutline(loaded.config, 0));
  MF_RETURN_IF_ERROR(
      parallel::LoadTrainingState(directory, *loaded.model.layers, nullptr).status());
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const ModelSource& source) {
  if (source.checkpoint.empty() == source.hf.empty()) {
    return absl::InvalidArgumentError("give exactly one of --checkpoint DIR and --hf DIR");
  }
  return source.hf.empty() ? FromCheckpoint(source) : FromHf(source);
}

}  // namespace meshfold::train
