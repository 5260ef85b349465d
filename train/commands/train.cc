#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "train/commands/commands.h"
#include "train/trainer.h"

namespace meshfold::train {

absl::Status RunTrain(const TrainOptions& options) {
  MF_ASSIGN_OR_RETURN(Config config, LoadConfig(options.config_path, options.overrides));
  Logger logger;
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                      Trainer::Create(config, {options.resume}, logger));
  if (trainer->step() >= config.train.steps) {
    logger.Info(absl::StrCat("nothing to do: ", config.run.dir, " has all ", config.train.steps,
                             " steps (--resume none starts anew)"));
    return absl::OkStatus();
  }
  return trainer->Run();
}

}  // namespace meshfold::train
