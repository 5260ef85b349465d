// What `meshfold verify` compares: a few steps on the ranks of a layout against the same steps in
// one process.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/tensor/tensor.h"
#include "train/trainer.h"

namespace meshfold::train {

// The trace of a few steps.
struct StepsTrace {
  std::vector<StepMetrics> steps;
  // Of the first step, before clipping, in VisitParameters order; whole, f32 in host memory. Empty
  // on other ranks than the first.
  std::vector<std::pair<std::string, Tensor>> gradients;
};

// Takes `num_steps` (>= 1) steps. Collective.
absl::StatusOr<StepsTrace> TraceSteps(Trainer& trainer, int64_t num_steps);

// Bounds on relative differences: of numbers |a - b| / |b|, of tensors the norm of a - b over that
// of b. Losses of later steps may drift: an optimizer such as Adam turns the rounding of small
// gradients into whole steps.
struct VerifyTolerance {
  double first_step = 1e-5;
  double later_loss = 1e-2;
};

struct VerifyResult {
  bool equal = false;
  std::string text;  // a few lines: what was compared, largest differences, and the verdict
};

// Compares `ranks` with `alone`; the verdict names the first number or tensor beyond its bound, in
// the order in which a step makes them. Local.
VerifyResult CompareTraces(const StepsTrace& ranks, const StepsTrace& alone,
                           const VerifyTolerance& tolerance);

}  // namespace meshfold::train
