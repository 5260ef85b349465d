#include "optim/lr_schedule.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::optim {
namespace {

using ::testing::HasSubstr;

// Peak 8, minimum 2, 2 warm-up steps of 10: easy to follow by hand.
ScheduleConfig Example(const std::string& name) {
  ScheduleConfig config;
  config.name = name;
  config.peak_lr = 8.0;
  config.total_steps = 10;
  config.warmup_steps = 2;
  config.decay_steps = 4;
  config.min_lr_ratio = 0.25;
  return config;
}

void ExpectRates(const ScheduleConfig& config, const std::vector<double>& expected) {
  for (size_t step = 0; step < expected.size(); ++step) {
    // A handful of roundings in double.
    EXPECT_NEAR(LearningRate(config, static_cast<int64_t>(step)), expected[step], 1e-14)
        << config.name << " step " << step;
  }
}

TEST(LrScheduleTest, ConstantStaysAtThePeakAfterWarmup) {
  ExpectRates(Example("constant"), {4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
}

TEST(LrScheduleTest, LinearFallsByEqualSteps) {
  ExpectRates(Example("linear"), {4, 8, 7.25, 6.5, 5.75, 5, 4.25, 3.5, 2.75, 2, 2, 2});
}

TEST(LrScheduleTest, CosineIsHalfAPeriod) {
  const double eighth = 3 * std::cos(M_PI / 8), quarter = 3 * std::sqrt(0.5),
               three_eighths = 3 * std::sin(M_PI / 8);
  ExpectRates(Example("cosine"), {4, 8, 5 + eighth, 5 + quarter, 5 + three_eighths, 5,
                                  5 - three_eighths, 5 - quarter, 5 - eighth, 2, 2});
}

TEST(LrScheduleTest, WsdIsStableThenDecays) {
  ExpectRates(Example("wsd"), {4, 8, 8, 8, 8, 8, 6.5, 5, 3.5, 2, 2});
}

TEST(LrScheduleTest, StartsNearThePeakWithoutWarmup) {
  ScheduleConfig config = Example("linear");
  config.warmup_steps = 0;
  config.decay_steps = 0;
  config.min_lr_ratio = 0;
  ExpectRates(config, {7.2, 6.4, 5.6});
  config.name = "wsd";
  ExpectRates(config, {8, 8, 8, 8, 8, 8, 8, 8, 8, 8});
}

TEST(LrScheduleTest, WarmupOverTheWholeRunReachesThePeakAtTheEnd) {
  for (const std::string& name : ScheduleRegistry().Names()) {
    ScheduleConfig config = Example(name);
    config.warmup_steps = 10;
    config.decay_steps = 0;
    EXPECT_DOUBLE_EQ(LearningRate(config, 4), 4.0) << name;
    EXPECT_DOUBLE_EQ(LearningRate(config, 9), 8.0) << name;
  }
}

// Every registered schedule keeps what the header promises.
TEST(LrScheduleTest, EveryScheduleStaysBetweenMinimumAndPeak) {
  for (const std::string& name : ScheduleRegistry().Names()) {
    const ScheduleConfig config = Example(name);
    ASSERT_TRUE(Validate(config).ok()) << Validate(config);
    for (int64_t step = 2; step < 20; ++step) {
      EXPECT_GE(LearningRate(config, step), 2.0) << name << " step " << step;
      EXPECT_LE(LearningRate(config, step), LearningRate(config, step - 1)) << name;
    }
  }
}

TEST(LrScheduleTest, RefusesWhatDoesNotFit) {
  struct Refusal {
    std::function<void(ScheduleConfig&)> break_it;
    std::string message;
  };
  const std::vector<Refusal> refusals = {
      {[](ScheduleConfig& c) { c.name = "cosin"; },
       "unknown learning-rate schedule 'cosin'; known: constant, cosine, linear, wsd"},
      {[](ScheduleConfig& c) { c.total_steps = 0; }, "total_steps is 0"},
      {[](ScheduleConfig& c) { c.warmup_steps = 11; }, "warmup_steps 11 is outside [0, "},
      {[](ScheduleConfig& c) { c.decay_steps = 9; },
       "decay_steps 9 does not fit after warmup_steps 2 in total_steps 10"},
      {[](ScheduleConfig& c) { c.min_lr_ratio = 1.5; }, "min_lr_ratio 1.5 is outside [0, 1]"},
      {[](ScheduleConfig& c) { c.peak_lr = -1; }, "peak_lr is -1"},
  };
  for (const Refusal& refusal : refusals) {
    ScheduleConfig config = Example("wsd");
    refusal.break_it(config);
    EXPECT_THAT(std::string(Validate(config).message()), HasSubstr(refusal.message));
  }
}

}  // namespace
}  // namespace meshfold::optim
