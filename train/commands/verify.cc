#include "train/verify.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "train/commands/commands.h"
#include "train/commands/launched_world.h"
#include "train/config.h"
#include "train/trainer.h"

namespace meshfold::train {
namespace {

// The layout first, on all ranks; then rank 0 alone, while the others are done.
absl::Status VerifyOn(const World& world, const VerifyOptions& options) {
  MF_ASSIGN_OR_RETURN(const Config config, LoadConfig(options.config_path, options.overrides));
  if (options.steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--steps is ", options.steps, ", at least 1"));
  }
  Logger quiet("", LogLevel::kError);
  StepsTrace ranks;
  std::string layout;
  {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::Create(config, {.from = "none"}, quiet, world));
    MF_ASSIGN_OR_RETURN(ranks, TraceSteps(*trainer, options.steps));
    layout = absl::StrCat(trainer->meshes().ranks.dense.ToString(), ", experts ",
                          trainer->meshes().ranks.expert.ToString());
  }
  if (world.communicator->rank() != 0) return absl::OkStatus();
  Config alone = config;
  alone.parallel = ParallelSection();
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                      Trainer::Create(alone, {.from = "none"}, quiet));
  MF_ASSIGN_OR_RETURN(const StepsTrace one, TraceSteps(*trainer, options.steps));
  const VerifyResult result = CompareTraces(ranks, one, VerifyTolerance());
  std::printf("%d ranks (%s) against one process\n%s", world.communicator->size(), layout.c_str(),
              result.text.c_str());
  std::fflush(stdout);
  // The verdict has been printed.
  return result.equal ? absl::OkStatus() : absl::AbortedError("");
}

}  // namespace

absl::Status RunVerify(const VerifyOptions& options) {
  return RunInLaunchedWorld([&](const World& world) { return VerifyOn(world, options); });
}

}  // namespace meshfold::train
