// What reaches a leaf: once a micro-batch, in order, reported when ready.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LeafGradTest : public ::testing::Test {
 protected:
  // Backward of micro-batch `m` of `n` from y with gradient dy.
  void Step(const Variable& y, const Tensor& dy, int64_t m, int64_t n) {
    BackwardFrom(y, dy, {.micro_batch = m, .num_micro_batches = n, .leaves = leaves_});
  }

  ScopedTestContext context_;
  std::vector<std::string> log_;
  std::vector<Variable> leaves_;
};

TEST_F(LeafGradTest, AnOpWritesTheGradientOfALeafUsedOnceStraightIntoTheBuffer) {
  Variable x = Variable::Leaf(Row({1, 2})), w = Variable::Leaf(Row({3, 4}));
  Tensor buffer = UnwrittenTensor({2});
  w.grad().SetBuffer(buffer);
  TargetView view;
  Step(AddThroughTarget(x, w, &view), Row({5, 6}), 0, 2);
  EXPECT_TRUE(view.writes_leaf);
  EXPECT_FALSE(view.accumulate);
  EXPECT_EQ(view.memory, buffer.raw());
  EXPECT_THAT(GradOf(w), ElementsAre(5, 6));
  Step(AddThroughTarget(x, w, &view), Row({10, 20}), 1, 2);
  EXPECT_TRUE(view.accumulate);
  EXPECT_EQ(view.memory, buffer.raw());
  EXPECT_THAT(ToVector<float>(buffer), ElementsAre(15, 26));
}

TEST_F(LeafGradTest, GradientsOfALeafUsedTwiceGoThroughTemporaries) {
  Variable x = Variable::Leaf(Row({1})), w = Variable::Leaf(Row({3}));
  TargetView first, second;
  Variable y = AddThroughTarget(AddThroughTarget(x, w, &first), w, &second);
  Step(y, Row({5}), 0, 1);
  EXPECT_FALSE(first.writes_leaf);
  EXPECT_FALSE(second.writes_leaf);
  EXPECT_THAT(GradOf(w), ElementsAre(10));
  EXPECT_EQ(w.grad().contributions(), 1);
}

// 2^24 + 1 is no f32: adding 1 twice loses both, adding 2 once does not.
TEST_F(LeafGradTest, SeveralUsesAreSummedFirstAndAddedOnce) {
  Variable w = Variable::Leaf(Row({1}));
  Step(Scale(w, 16777216.0), Row({1}), 0, 2);
  Step(Add(Scale(w, 1.0), Scale(w, 1.0)), Row({1}), 1, 2);
  EXPECT_THAT(GradOf(w), ElementsAre(16777218));
}

TEST_F(LeafGradTest, TheFirstMicroBatchOverwritesAndLaterOnesAdd) {
  Variable w = Variable::Leaf(Row({1}));
  w.grad().SetBuffer(UnwrittenTensor({1}));
  for (int step = 0; step < 2; ++step) {
    w.grad().Reset();
    Step(Scale(w, 1.0), Row({2}), 0, 3);
    Step(Scale(w, 1.0), Row({3}), 1, 3);
    Step(Scale(w, 1.0), Row({4}), 2, 3);
    EXPECT_THAT(GradOf(w), ElementsAre(9));
    EXPECT_EQ(w.grad().contributions(), 3);
  }
}

TEST_F(LeafGradTest, MicroBatchesOutOfOrderAreABug) {
  Variable w = Variable::Leaf(Row({1}));
  EXPECT_DEATH(Step(Scale(w, 1.0), Row({1}), 1, 2), "0 against 1.*must arrive in order");
  Step(Scale(w, 1.0), Row({1}), 0, 2);
  EXPECT_DEATH(Step(Scale(w, 1.0), Row({1}), 0, 2), "1 against 0.*must arrive in order");
}

TEST_F(LeafGradTest, ABufferOfAnotherShapeIsABug) {
  Variable w = Variable::Leaf(Row({1}));
  w.grad().SetBuffer(Row({1, 2}));
  EXPECT_DEATH(Step(Scale(w, 1.0), Row({1}), 0, 1), "gradient buffer f32 \\[2\\] for f32 \\[1\\]");
}

TEST_F(LeafGradTest, LeavesThatNoGradientReachesAreCreditedZero) {
  Variable used = Variable::Leaf(Row({1})), outside = Variable::Leaf(Row({1})),
           swallowed = Variable::Leaf(Row({1})), frozen = Variable::Leaf(Row({1}));
  frozen.set_requires_grad(false);
  leaves_ = {used, outside, frozen};
  for (const Variable& leaf : {outside, swallowed}) leaf.grad().SetBuffer(UnwrittenTensor({1}));
  TraceOnGrad(outside, "outside", &log_);
  TraceOnGrad(swallowed, "swallowed", &log_);
  TraceOnGrad(frozen, "frozen", &log_);
  // Of `swallowed`, one use is below a node that no gradient reaches.
  Variable lost = Swallow(Add(Scale(swallowed, 1.0), Scale(swallowed, 1.0)));
  Step(Add(Scale(used, 1.0), lost), Row({1}), 0, 1);
  EXPECT_THAT(GradOf(used), ElementsAre(1));
  EXPECT_THAT(GradOf(outside), ElementsAre(0));
  EXPECT_THAT(GradOf(swallowed), ElementsAre(0));
  EXPECT_FALSE(frozen.grad().tensor().defined());
  EXPECT_THAT(log_, ElementsAre("outside", "swallowed"));
}

TEST_F(LeafGradTest, AZeroContributionKeepsWhatEarlierMicroBatchesGave) {
  Variable w = Variable::Leaf(Row({1})), other = Variable::Leaf(Row({1}));
  leaves_ = {w, other};
  Step(Scale(w, 3.0), Row({1}), 0, 2);
  Step(Scale(other, 4.0), Row({1}), 1, 2);
  EXPECT_THAT(GradOf(w), ElementsAre(3));
  EXPECT_THAT(GradOf(other), ElementsAre(4));
  EXPECT_EQ(w.grad().contributions(), 2);
  EXPECT_EQ(other.grad().contributions(), 2);
}

TEST_F(LeafGradTest, OnGradFiresOnceAStepAtTheLastMicroBatch) {
  Variable w = Variable::Leaf(Row({1}));
  leaves_ = {w};
  std::vector<float> seen;
  w.set_on_grad([&] { seen.push_back(GradOf(w)[0]); });
  for (int step = 0; step < 2; ++step) {
    w.grad().Reset();
    // Used twice, used once, not used.
    Step(Add(Scale(w, 1.0), Scale(w, 1.0)), Row({1}), 0, 3);
    Step(Scale(w, 5.0), Row({1}), 1, 3);
    EXPECT_EQ(seen.size(), static_cast<size_t>(step));
    Step(Variable(Row({1})), Row({1}), 2, 3);
    EXPECT_EQ(seen.size(), static_cast<size_t>(step) + 1);
  }
  EXPECT_THAT(seen, ElementsAre(7, 7));
}

TEST_F(LeafGradTest, OnGradFiresAsSoonAsTheLastUseHasRun) {
  Variable x = Variable::Leaf(Row({1})), once = Variable::Leaf(Row({1})),
           twice = Variable::Leaf(Row({1}));
  leaves_ = {once, twice, x};
  TraceOnGrad(x, "x ready", &log_);
  TraceOnGrad(once, "once ready", &log_);
  TraceOnGrad(twice, "twice ready", &log_);
  TargetView view;
  Variable h = Traced(x, "layer 0", &log_);
  h = Traced(AddThroughTarget(h, twice, &view), "layer 1", &log_);
  h = Traced(AddThroughTarget(h, once, &view), "layer 2", &log_);
  h = Traced(AddThroughTarget(h, twice, &view), "layer 3", &log_);
  Step(h, Row({1}), 0, 1);
  EXPECT_THAT(log_, ElementsAre("layer 3", "layer 2", "once ready", "layer 1", "twice ready",
                                "layer 0", "x ready"));
}

TEST_F(LeafGradTest, OnGradStaysSilentWhenBackwardFails) {
  Variable w = Variable::Leaf(Row({1}));
  TraceOnGrad(w, "ready", &log_);
  EXPECT_THROW(Step(Failing(Scale(w, 1.0)), Row({1}), 0, 1), StatusError);
  EXPECT_THAT(log_, IsEmpty());
}

TEST_F(LeafGradTest, ALeafWithoutDataTakesGradientsIntoItsBuffer) {
  Variable w = Variable::Leaf(Row({1}));
  w.grad().SetBuffer(Row({0}));
  Variable y = Scale(w, 3.0);
  w.MoveData(Tensor());
  Step(y, Row({1}), 0, 1);
  EXPECT_THAT(GradOf(w), ElementsAre(3));
}

}  // namespace
}  // namespace meshfold::testing
