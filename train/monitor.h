// The progress line of a long run, and the rates behind it.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/log.h"
#include "train/progress_mode.h"

namespace meshfold::train {

struct ProgressSample {
  int64_t step = 0;  // steps done
  int64_t total_steps = 0;
  double loss = 0.0;
  double tokens_per_second = 0.0;
  double mfu = 0.0;  // share of the measured GEMM rate; 0: unknown
  double step_seconds = 0.0;
};

// "step 120/1000  loss 2.3145  8123 tokens/s  MFU 71%  left 3m12s".
std::string FormatProgress(const ProgressSample& sample, double seconds_left);

// "45s", "3m12s", "2h05m".
std::string FormatDuration(double seconds);

// Writes progress to stderr. With kAuto: rewriting on a terminal; elsewhere one line every
// `quiet_interval` steps through the logger.
class ProgressLine {
 public:
  ProgressLine(ProgressMode mode, Logger& logger, int64_t quiet_interval);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Update(const ProgressSample& sample);
  // Ends the rewriting line, so that other output starts on a fresh one.
  void Finish();

 private:
  bool rewrite_;
  bool enabled_;
  Logger& logger_;
  int64_t quiet_interval_;
  double smoothed_step_seconds_ = 0.0;
  bool line_open_ = false;
};

}  // namespace meshfold::train
