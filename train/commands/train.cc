#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/trainer.h"

namespace meshfold::train {
namespace {

absl::Status TrainInWorld(const Config& config, const std::string& resume, const World& world) {
  const int rank = world.communicator->rank();
  // What all ranks would say is said once.
  Logger logger(rank == 0 ? "" : absl::StrCat("rank ", rank),
                rank == 0 ? LogLevel::kInfo : LogLevel::kError);
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                      Trainer::Create(config, {resume}, logger, world));
  if (trainer->step() >= config.train.steps) {
    logger.Info(absl::StrCat("nothing to do: ", config.run.dir, " has all ", config.train.steps,
                             " steps (--resume none starts anew)"));
    return absl::OkStatus();
  }
  return trainer->Run();
}

}  // namespace

absl::Status RunTrain(const TrainOptions& options) {
  MF_ASSIGN_OR_RETURN(const Config config, LoadConfig(options.config_path, options.overrides));
  return RunInLaunchedWorld(
      [&](const World& world) { return TrainInWorld(config, options.resume, world); });
}

}  // namespace meshfold::train
