#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "train/commands/commands.h"
#include "train/trainer.h"

namespace meshfold::train {
namespace {

// Processes that mpirun started; 1 without it.
int64_t NumLaunched() {
  const char* text = std::getenv("OMPI_COMM_WORLD_SIZE");
  int64_t count = 1;
  return text != nullptr && absl::SimpleAtoi(text, &count) ? count : 1;
}

}  // namespace

absl::Status RunTrain(const TrainOptions& options) {
  MF_ASSIGN_OR_RETURN(Config config, LoadConfig(options.config_path, options.overrides));
  if (NumLaunched() > 1) {
    // Each would train the same model and write the same files.
    return absl::UnimplementedError(
        absl::StrCat(NumLaunched(), " ranks were started; this version trains on one"));
  }
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
