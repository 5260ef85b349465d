#include "train/monitor.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::train {
namespace {

using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(MonitorTest, FormatsDurations) {
  EXPECT_EQ(FormatDuration(-1), "0s");
  EXPECT_EQ(FormatDuration(59.4), "59s");
  EXPECT_EQ(FormatDuration(59.6), "1m00s");
  EXPECT_EQ(FormatDuration(192), "3m12s");
  EXPECT_EQ(FormatDuration(2 * 3600 + 5 * 60 + 59), "2h05m");
}

TEST(MonitorTest, FormatsProgress) {
  ProgressSample sample{
      .step = 120, .total_steps = 1000, .loss = 2.31449, .tokens_per_second = 8123};
  EXPECT_EQ(FormatProgress(sample, 192), "step 120/1000  loss 2.3145  8123 tokens/s  left 3m12s");
  sample.mfu = 0.714;
  EXPECT_EQ(FormatProgress(sample, 3),
            "step 120/1000  loss 2.3145  8123 tokens/s  MFU 71%  left 3s");
}

// Standard error is a file here.
std::string Shown(ProgressMode mode, int64_t interval, int64_t steps) {
  Logger logger;
  CaptureStderr();
  {
    ProgressLine progress(mode, logger, interval);
    for (int64_t step = 1; step <= steps; ++step) {
      progress.Update({.step = step, .total_steps = steps, .step_seconds = 2.0});
    }
  }
  return GetCapturedStderr();
}

TEST(ProgressLineTest, IsSparseWithoutATerminal) {
  for (ProgressMode mode : {ProgressMode::kAuto, ProgressMode::kOn}) {
    EXPECT_EQ(Shown(mode, 3, 7),
              "step 1/7  loss 0.0000  0 tokens/s  left 12s\n"
              "step 3/7  loss 0.0000  0 tokens/s  left 8s\n"
              "step 6/7  loss 0.0000  0 tokens/s  left 2s\n"
              "step 7/7  loss 0.0000  0 tokens/s  left 0s\n");
  }
  EXPECT_EQ(Shown(ProgressMode::kOff, 1, 7), "");
}

}  // namespace
}  // namespace meshfold::train
