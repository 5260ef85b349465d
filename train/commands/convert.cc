#include <cstdio>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "models/hf_io.h"
#include "optim/optimizer.h"
#include "parallel/train_state.h"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/commands/loaded_model.h"

namespace meshfold::train {
namespace {

absl::Status ToHf(const ConvertOptions& options) {
  models::HfWriteOptions write;
  write.max_shard_bytes = options.max_shard_bytes;
  if (options.expert_form == "fused") {
    write.expert_form = models::HfExpertForm::kFused;
  } else if (options.expert_form != "split") {
    return absl::InvalidArgumentError(
        absl::StrCat("--experts is '", options.expert_form, "'; split or fused"));
  }
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel({.checkpoint = options.in_dir}, SoloWorld()));
  ScopedExecContext scope(loaded.runtime->context());
  return models::WriteHf(options.out_dir, loaded.model.config, *loaded.model.layers, write);
}

// The type of the files, where weights of a run can have it: bf16 stays bf16. f16 becomes f32,
// which holds all of it.
absl::StatusOr<std::string> DTypeOf(const std::string& hf) {
  MF_ASSIGN_OR_RETURN(models::HfDirectory directory, models::OpenHf(hf));
  absl::StatusOr<SafetensorsInfo> embedding = directory.tensors.info("model.embed_tokens.weight");
  return embedding.ok() && embedding->dtype == FileDType::kBF16 ? "bf16" : "f32";
}

// A checkpoint at step 0: weights with fresh optimizer state, so that training can go on from it.
absl::Status ToMeshfold(const ConvertOptions& options) {
  MF_ASSIGN_OR_RETURN(std::string dtype, DTypeOf(options.in_dir));
  MF_ASSIGN_OR_RETURN(
      LoadedModel loaded,
      LoadModel({.hf = options.in_dir, .overrides = {absl::StrCat("model.dtype=", dtype)}},
                SoloWorld()));
  ScopedExecContext scope(loaded.runtime->context());
  parallel::CheckpointState state;
  state.config_yaml = ResolvedYaml(WithModel(loaded.config, loaded.model.config));
  return parallel::SaveTrainingState(options.out_dir, *loaded.model.layers, nullptr, state, {})
      .status();
}

}  // namespace

absl::Status RunConvert(const ConvertOptions& options) {
  if (options.to != "hf" && options.to != "meshfold") {
    return absl::InvalidArgumentError(absl::StrCat("--to is '", options.to, "'; hf or meshfold"));
  }
  MF_RETURN_IF_ERROR(RefuseSeveralRanks("convert"));
  MF_RETURN_IF_ERROR(options.to == "hf" ? ToHf(options) : ToMeshfold(options));
  std::printf("wrote %s\n", options.out_dir.c_str());
  return absl::OkStatus();
}

}  // namespace meshfold::train
