#include "train/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace meshfold::train {

std::string FormatDuration(double seconds) {
  int64_t total = std::max<int64_t>(0, std::llround(seconds));
  if (total < 60) return absl::StrCat(total, "s");
  if (total < 3600) return absl::StrFormat("%dm%02ds", total / 60, total % 60);
  return absl::StrFormat("%dh%02dm", total / 3600, total % 3600 / 60);
}

std::string FormatProgress(const ProgressSample& sample, double seconds_left) {
  std::string line = absl::StrFormat("step %d/%d  loss %.4f  %.0f tokens/s", sample.step,
                                     sample.total_steps, sample.loss, sample.tokens_per_second);
  if (sample.mfu > 0.0) absl::StrAppendFormat(&line, "  MFU %.0f%%", 100.0 * sample.mfu);
  absl::StrAppend(&line, "  left ", FormatDuration(seconds_left));
  return line;
}

ProgressLine::ProgressLine(ProgressMode mode, Logger& logger, int64_t quiet_interval)
    : rewrite_(mode != ProgressMode::kOff && isatty(STDERR_FILENO) == 1),
      enabled_(mode != ProgressMode::kOff),
      logger_(logger),
      quiet_interval_(std::max<int64_t>(1, quiet_interval)) {}

ProgressLine::~ProgressLine() { Finish(); }

void ProgressLine::Update(const ProgressSample& sample) {
  if (!enabled_) return;
  // The first step pays for warm-up: later ones replace it quickly.
  double weight = smoothed_step_seconds_ == 0.0 || sample.step <= 2 ? 1.0 : 0.1;
  smoothed_step_seconds_ += weight * (sample.step_seconds - smoothed_step_seconds_);
  double left = smoothed_step_seconds_ * static_cast<double>(sample.total_steps - sample.step);
  std::string line = FormatProgress(sample, left);
  if (rewrite_) {
    std::fprintf(stderr, "\r\033[K%s", line.c_str());
    std::fflush(stderr);
    line_open_ = true;
    return;
  }
  bool due =
      sample.step % quiet_interval_ == 0 || sample.step == sample.total_steps || sample.step == 1;
  if (due) logger_.Info(line);
}

void ProgressLine::Finish() {
  if (!line_open_) return;
  std::fprintf(stderr, "\n");
  line_open_ = false;
}

}  // namespace meshfold::train
