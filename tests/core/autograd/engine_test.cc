// Order of backward, sums of gradients, and roots.
#include "core/autograd/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/autograd/ops.h"
#include "core/base/check.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;

class EngineTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
  std::vector<std::string> log_;
};

TEST_F(EngineTest, RunsNodesInReverseCreationOrder) {
  Variable x = Variable::Leaf(Row({1}));
  Variable a = Traced(x, "a", &log_), b = Traced(x, "b", &log_);
  Variable c = Traced(b, "c", &log_), d = Traced(a, "d", &log_);
  Variable e = Traced(a, "e", &log_);
  BackwardFrom(Add(Add(e, c), d), Row({1}));
  EXPECT_THAT(log_, ElementsAre("e", "d", "c", "b", "a"));
  EXPECT_THAT(GradOf(x), ElementsAre(3));
}

TEST_F(EngineTest, FollowsCreationOrderFromRootsInAnyOrder) {
  Variable x = Variable::Leaf(Row({1}));
  Variable a = Traced(x, "a", &log_), b = Traced(x, "b", &log_);
  Backward({Root{a, Row({1})}, Root{b, Row({10})}}, {});
  EXPECT_THAT(log_, ElementsAre("b", "a"));
  EXPECT_THAT(GradOf(x), ElementsAre(11));
}

TEST_F(EngineTest, SumsGradientsOfAVariableUsedTwice) {
  Variable x = Variable::Leaf(Row({3, -2}));
  Variable h = Scale(x, 2.0);
  BackwardFrom(Multiply(h, h), Row({1, 10}));
  // d(4 x^2) = 8 x.
  EXPECT_THAT(GradOf(x), ElementsAre(24, -160));
}

TEST_F(EngineTest, AddsGradientsInReverseCreationOrder) {
  Variable x = Variable::Leaf(Row({1}));
  Variable h = Scale(x, 1.0);
  // Only ((-1e8 + 1e8) + 1) keeps the 1 in f32.
  Variable first = Scale(h, 1.0), second = Scale(h, 1e8), third = Scale(h, -1e8);
  BackwardFrom(Add(Add(first, second), third), Row({1}));
  EXPECT_THAT(GradOf(x), ElementsAre(1));
}

TEST_F(EngineTest, AddsGradientsOfALeafInReverseCreationOrder) {
  Variable x = Variable::Leaf(Row({1}));
  Variable first = Scale(x, 1.0), second = Scale(x, 1e8), third = Scale(x, -1e8);
  BackwardFrom(Add(Add(first, second), third), Row({1}));
  EXPECT_THAT(GradOf(x), ElementsAre(1));
}

// Add hands one tensor to both inputs: a sum in place would change the other's gradient.
TEST_F(EngineTest, SharedGradientsAreNotWrittenInPlace) {
  Variable x = Variable::Leaf(Row({1})), y = Variable::Leaf(Row({1}));
  Variable a = Scale(x, 1.0), b = Scale(y, 1.0);
  Variable s = Add(a, b);
  Tensor dy = Row({1});
  BackwardFrom(Add(Add(s, a), s), dy);
  EXPECT_THAT(GradOf(x), ElementsAre(3));
  EXPECT_THAT(GradOf(y), ElementsAre(2));
  EXPECT_THAT(ToVector<float>(dy), ElementsAre(1));
}

TEST_F(EngineTest, TakesRootsThatAreLeavesOrConstants) {
  Variable x = Variable::Leaf(Row({1})), constant(Row({1}));
  Backward({Root{x, Row({5})}, Root{constant, Row({7})}, Root{Scale(x, 2.0), Row({1})}}, {});
  EXPECT_THAT(GradOf(x), ElementsAre(7));
  EXPECT_FALSE(constant.grad().tensor().defined());
}

TEST_F(EngineTest, AddsSeveralGradientsOfOneRoot) {
  Variable x = Variable::Leaf(Row({1}));
  Variable y = Scale(x, 2.0);
  Backward({Root{y, Row({1})}, Root{y, Row({10})}}, {});
  EXPECT_THAT(GradOf(x), ElementsAre(22));
}

TEST_F(EngineTest, OutputsWithoutGradientAreUndefined) {
  Variable x = Variable::Leaf(Row({1, 2}));
  std::vector<bool> defined;
  std::vector<Variable> outs =
      Record("Split", {Row({1}), Row({2})}, {x}, Saved(), [&](BackwardCall& call) {
        defined = {call.grad_out(0).defined(), call.grad_out(1).defined()};
        call.Set(0, Row({0, call.grad_out(1).data<float>()[0]}));
      });
  BackwardFrom(outs[1], Row({4}));
  EXPECT_THAT(defined, ElementsAre(false, true));
  EXPECT_THAT(GradOf(x), ElementsAre(0, 4));
}

TEST_F(EngineTest, StartsFromAScalarLossWithOne) {
  Variable x = Variable::Leaf(Row({3}));
  Backward(Scale(x, 5.0), {});
  EXPECT_THAT(GradOf(x), ElementsAre(5));
}

TEST_F(EngineTest, PassesOnWhatABackwardFunctionThrows) {
  Variable x = Variable::Leaf(Row({1}));
  Variable y = Failing(Traced(x, "below", &log_));
  try {
    BackwardFrom(y, Row({1}));
    FAIL() << "nothing thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status(), absl::UnavailableError("[Failing] the peer is gone"));
  }
  EXPECT_TRUE(log_.empty());
  EXPECT_EQ(x.grad().contributions(), 0);
}

TEST_F(EngineTest, AGraphRunsOnce) {
  Variable x = Variable::Leaf(Row({1}));
  Variable y = Scale(x, 2.0);
  BackwardFrom(y, Row({1}));
  x.grad().Reset();
  EXPECT_DEATH(BackwardFrom(y, Row({1})), "Scale ran backward already");
  EXPECT_DEATH(BackwardFrom(y, Row({1}), {.mode = BackwardMode::kInputOnly}),
               "Scale ran backward already");
}

TEST_F(EngineTest, RefusesGradientsOfAnotherShape) {
  Variable x = Variable::Leaf(Row({1, 2}));
  EXPECT_DEATH(BackwardFrom(Scale(x, 2.0), Row({1})), "gradient f32 \\[1\\] for \\[2\\] of Scale");
  EXPECT_DEATH(BackwardFrom(x, Row({1})), "gradient f32 \\[1\\] for \\[2\\] of a leaf");
}

TEST_F(EngineTest, RunsInTheContextOfTheCaller) {
  Variable x = Variable::Leaf(Row({1}));
  Variable y;
  {
    ScopedTestContext forward_context;
    y = Scale(x, 2.0);
  }
  ScopedTestContext backward_context;
  Backend* seen = nullptr;
  Variable z = Record("Look", {y.data()}, {y}, Saved(), [&](BackwardCall& call) {
    seen = &CurrentBackend();
    call.Set(0, call.grad_out());
  })[0];
  BackwardFrom(z, Row({1}));
  EXPECT_EQ(seen, &backward_context.backend());
}

}  // namespace
}  // namespace meshfold::testing
