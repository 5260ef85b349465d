#include <cstdio>

#include "core/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/commands/loaded_model.h"
#include "train/evaluation.h"

namespace meshfold::train {

namespace {

absl::Status EvalOn(const World& world, const ModelSource& source, const EvalOptions& options) {
  MF_ASSIGN_OR_RETURN(LoadedModel loaded, LoadModel(source, world));
  ScopedExecContext scope(loaded.runtime->context());
  MF_ASSIGN_OR_RETURN(EvalBatch batch,
                      ReadEvalBatch(options.tokens_path, loaded.model.config.vocab_size));
  MF_ASSIGN_OR_RETURN(EvalResult result,
                      EvaluateBatch(*loaded.model.layers, loaded.model.family, batch,
                                    !options.out_path.empty(), &loaded.meshes));
  if (world.communicator->rank() != 0) return absl::OkStatus();
  if (!options.out_path.empty()) {
    MF_RETURN_IF_ERROR(WriteSafetensors(options.out_path, result.tensors));
  }
  nlohmann::json line = {{"loss", result.loss}, {"tokens", result.tokens}};
  std::printf("%s\n", line.dump().c_str());
  return absl::OkStatus();
}

}  // namespace

absl::Status RunEval(const EvalOptions& options) {
  // How a checkpoint was trained is not what is asked here: the loss is the language model's alone,
  // unless the user's own --set, which come later, say more.
  ModelSource source = options.source;
  source.overrides = {"moe.aux_loss=0", "moe.z_loss=0", "moe.capacity_factor=0"};
  source.overrides.insert(source.overrides.end(), options.source.overrides.begin(),
                          options.source.overrides.end());
  return RunInLaunchedWorld([&](const World& world) { return EvalOn(world, source, options); });
}

}  // namespace meshfold::train
