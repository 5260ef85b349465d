#include "train/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/testing/scoped_test_context.h"

namespace meshfold::train {
namespace {

using ::testing::HasSubstr;

StepsTrace Trace() {
  StepsTrace trace;
  for (int64_t step : {1, 2}) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 5.0;
    metrics.aux_loss = 0.01;
    metrics.grad_norm = 2.0;
    metrics.tokens = 64;
    trace.steps.push_back(metrics);
  }
  trace.gradients = {{"a", TensorFromVector<float>({3, 4}, {2})},
                     {"b", TensorFromVector<float>({0, 0, 1}, {3})}};
  return trace;
}

std::string Verdict(const StepsTrace& ranks) {
  const VerifyResult result = CompareTraces(ranks, Trace(), VerifyTolerance());
  EXPECT_EQ(result.equal, result.text.find("different: ") == std::string::npos);
  return result.text;
}

class VerifyTest : public ::testing::Test {
 private:
  meshfold::testing::ScopedTestContext context_;
};

TEST_F(VerifyTest, EqualTracesAreEqual) { EXPECT_THAT(Verdict(Trace()), HasSubstr("\nequal\n")); }

TEST_F(VerifyTest, RoundingIsNoDifference) {
  StepsTrace ranks = Trace();
  ranks.gradients[0].second.data<float>()[0] = 3.00001f;
  ranks.steps[1].loss = 5.01;
  EXPECT_THAT(Verdict(ranks), HasSubstr("\nequal\n"));
}

TEST_F(VerifyTest, NamesTheFirstTensorThatDiffers) {
  StepsTrace ranks = Trace();
  ranks.gradients[0].second.data<float>()[0] = 3.5f;  // 0.5 of a norm of 5
  ranks.gradients[1].second.data<float>()[2] = 2.0f;
  EXPECT_THAT(Verdict(ranks), HasSubstr("different: the gradient of a differs by 0.1 (at most"));
  EXPECT_THAT(Verdict(ranks), HasSubstr("largest relative difference 1 (the gradient of b)"));
}

TEST_F(VerifyTest, NumbersComeBeforeTensors) {
  StepsTrace ranks = Trace();
  ranks.gradients[0].second.data<float>()[0] = 3.5f;
  ranks.steps[0].aux_loss = 0.02;
  EXPECT_THAT(Verdict(ranks), HasSubstr("different: the balance loss of step 1 differs by 1 "));
}

TEST_F(VerifyTest, WhatIsNoNumberDiffers) {
  StepsTrace ranks = Trace();
  ranks.gradients[1].second.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(Verdict(ranks), HasSubstr("different: the gradient of b differs by inf"));
  ranks = Trace();
  ranks.steps[1].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Verdict(ranks), HasSubstr("different: the loss of step 2 differs by inf"));
}

}  // namespace
}  // namespace meshfold::train
