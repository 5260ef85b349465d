#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::optim {
namespace {

// Part of the way from the end of warm-up to the end of the run, in (0, 1].
double Progress(const ScheduleConfig& config, int64_t done) {
  return static_cast<double>(done - config.warmup_steps) /
         static_cast<double>(config.total_steps - config.warmup_steps);
}

double Constant(const ScheduleConfig&, int64_t) { return 1.0; }

double Linear(const ScheduleConfig& config, int64_t done) { return 1.0 - Progress(config, done); }

// Half a period (Loshchilov and Hutter 2017, SGDR, without restarts).
double Cosine(const ScheduleConfig& config, int64_t done) {
  return 0.5 * (1.0 + std::cos(M_PI * Progress(config, done)));
}

// Warm-up, stable, decay (Hu et al. 2024, MiniCPM), with a linear decay.
double WarmupStableDecay(const ScheduleConfig& config, int64_t done) {
  const int64_t left = config.total_steps - done;
  if (left >= config.decay_steps) return 1.0;
  return static_cast<double>(left) / static_cast<double>(config.decay_steps);
}

}  // namespace

Registry<ScheduleShape>& ScheduleRegistry() {
  static auto* registry = new Registry<ScheduleShape>("learning-rate schedule");
  return *registry;
}

absl::Status Validate(const ScheduleConfig& config) {
  MF_RETURN_IF_ERROR(ScheduleRegistry().Find(config.name).status());
  if (config.total_steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("[LearningRate] total_steps is ",
                                                   config.total_steps, "; at least 1 is needed"));
  }
  if (!(config.peak_lr >= 0) || !std::isfinite(config.peak_lr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[LearningRate] peak_lr is ", config.peak_lr, "; it must be 0 or more"));
  }
  if (!(config.min_lr_ratio >= 0 && config.min_lr_ratio <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[LearningRate] min_lr_ratio ", config.min_lr_ratio, " is outside [0, 1]"));
  }
  if (config.warmup_steps < 0 || config.warmup_steps > config.total_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("[LearningRate] warmup_steps ", config.warmup_steps,
                     " is outside [0, total_steps = ", config.total_steps, "]"));
  }
  if (config.decay_steps < 0 || config.decay_steps > config.total_steps - config.warmup_steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[LearningRate] decay_steps ", config.decay_steps, " does not fit after warmup_steps ",
        config.warmup_steps, " in total_steps ", config.total_steps));
  }
  return absl::OkStatus();
}

double LearningRate(const ScheduleConfig& config, int64_t step) {
  MF_CHECK_GE(step, 0);
  const absl::StatusOr<ScheduleShape> shape = ScheduleRegistry().Find(config.name);
  MF_CHECK(shape.ok()) << shape.status().message();
  const int64_t done = std::min(step, config.total_steps - 1) + 1;
  if (done <= config.warmup_steps) {
    return config.peak_lr * static_cast<double>(done) / static_cast<double>(config.warmup_steps);
  }
  const double left = (*shape)(config, done);
  return config.peak_lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * left);
}

MF_REGISTER(ScheduleRegistry(), "constant", Constant);
MF_REGISTER(ScheduleRegistry(), "linear", Linear);
MF_REGISTER(ScheduleRegistry(), "cosine", Cosine);
MF_REGISTER(ScheduleRegistry(), "wsd", WarmupStableDecay);

}  // namespace meshfold::optim
