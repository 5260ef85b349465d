// Learning-rate schedules: pure functions of the step. A schedule is one shape function and one
// registration line; warm-up and bounds are common to all and stand here.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/base/registry.h"

namespace meshfold::optim {

struct ScheduleConfig {
  std::string name = "cosine";  // a name in ScheduleRegistry(): constant, cosine, linear, wsd
  double peak_lr = 1e-3;        // learning rate at the end of warm-up
  int64_t total_steps = 1;      // optimizer steps of the whole run
  int64_t warmup_steps = 0;     // steps of linear warm-up from 0
  int64_t decay_steps = 0;      // wsd: length of the final decay
  double min_lr_ratio = 0.0;    // lowest learning rate / peak_lr
};

// The shape after warm-up: a factor in [0, 1] that says how much of the way from the minimum to
// the peak is left once `done` optimizer steps are complete, warmup_steps < done <= total_steps.
using ScheduleShape = double (*)(const ScheduleConfig& config, int64_t done);

// Shapes by name. Filled before main, read-only afterwards.
Registry<ScheduleShape>& ScheduleRegistry();

// InvalidArgument with both values when the steps do not fit together or a ratio lies outside
// [0, 1]; NotFound with the known names when there is no such schedule.
absl::Status Validate(const ScheduleConfig& config);

// The learning rate of optimizer step `step`, counted from 0. With n = step + 1:
//   n <= warmup_steps:  peak_lr * n / warmup_steps   (the last warm-up step runs at the peak)
//   later:              peak_lr * (min_lr_ratio + (1 - min_lr_ratio) * shape(n))
// so that the last step of the run is at the minimum of a decaying schedule. Steps past total_steps
// keep the last value. `config` must be valid. Thread-safe.
double LearningRate(const ScheduleConfig& config, int64_t step);

}  // namespace meshfold::optim
