// Saved slots, versions, and when ops are recorded at all.
#include "core/autograd/variable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "core/base/check.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;

class VariableTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

// The status that `run` throws.
template <typename F>
absl::Status StatusOf(F&& run) {
  try {
    run();
  } catch (const StatusError& error) {
    return error.status();
  }
  return absl::OkStatus();
}

TEST_F(VariableTest, HandlesShareOneState) {
  Variable leaf = Variable::Leaf(Row({1, 2}));
  Variable copy = leaf;
  copy.SetData(Row({3, 4}));
  EXPECT_THAT(ToVector<float>(leaf.data()), ElementsAre(3, 4));
  EXPECT_EQ(leaf.version(), 1u);
  copy.BumpVersion();
  EXPECT_EQ(leaf.version(), 2u);
  copy.MoveData(Row({5, 6}));
  EXPECT_EQ(leaf.version(), 2u);
  EXPECT_TRUE(leaf.requires_grad());
  EXPECT_FALSE(Variable(Row({1})).requires_grad());
  EXPECT_FALSE(Variable().requires_grad());
  EXPECT_DEATH(Variable().data(), "undefined Variable");
}

TEST_F(VariableTest, NothingIsRecordedUnderNoGrad) {
  Variable x = Variable::Leaf(Row({1}));
  ScopedGradMode no_grad(GradMode::kNoGrad);
  Variable y = Scale(x, 2.0);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(y.grad_fn(), nullptr);
}

TEST_F(VariableTest, NothingIsRecordedWhenNoInputWantsAGradient) {
  Variable frozen = Variable::Leaf(Row({1}));
  frozen.set_requires_grad(false);
  EXPECT_EQ(Add(Variable(Row({1})), frozen).grad_fn(), nullptr);
  EXPECT_NE(Add(Variable(Row({1})), Variable::Leaf(Row({1}))).grad_fn(), nullptr);
}

TEST_F(VariableTest, SlotsHoldLeavesByReferenceAndTheRestByValue) {
  Variable leaf = Variable::Leaf(Row({1})), constant(Row({2}));
  Variable h = Scale(leaf, 3.0);
  Saved saved;
  int a = saved.Input("leaf", leaf), b = saved.Input("constant", constant), c = saved.Input("h", h),
      d = saved.Input("none", Variable()), e = saved.State("ids", Row({7}));
  EXPECT_EQ(saved.slots()[static_cast<size_t>(a)].kind, Saved::Kind::kParameter);
  EXPECT_EQ(saved.slots()[static_cast<size_t>(b)].kind, Saved::Kind::kActivation);
  EXPECT_EQ(saved.slots()[static_cast<size_t>(c)].kind, Saved::Kind::kActivation);
  EXPECT_EQ(saved.slots()[static_cast<size_t>(e)].kind, Saved::Kind::kState);
  EXPECT_THAT(ToVector<float>(saved.Get(a)), ElementsAre(1));
  EXPECT_THAT(ToVector<float>(saved.Get(c)), ElementsAre(3));
  EXPECT_FALSE(saved.Get(d).defined());
  leaf.MoveData(Row({4}));
  EXPECT_THAT(ToVector<float>(saved.Get(a)), ElementsAre(4));
  EXPECT_DEATH(saved.Parameter("h", h), "'h' is not a leaf");
  saved.Release();
  EXPECT_DEATH(saved.Get(a), "slot 0 of 0: was the graph's saved state released");
}

TEST_F(VariableTest, ReadingAParameterWrittenSinceTheForwardFails) {
  Variable x = Variable::Leaf(RandomTensor("x", {2, 3})), w = Variable::Leaf(Row({1, 1, 1}));
  Variable y = RmsNorm(x, w, {});
  w.BumpVersion();
  absl::Status status = StatusOf([&] { BackwardFrom(y, RandomTensor("dy", {2, 3})); });
  EXPECT_EQ(status, absl::FailedPreconditionError(
                        "[Backward] 'weight' was written (version 1) after the forward saved it "
                        "(version 0)"));
}

TEST_F(VariableTest, AParameterMovedSinceTheForwardIsReadWhereItIs) {
  Variable x = Variable::Leaf(Row({1, 2})), w = Variable::Leaf(Row({3, 4}));
  Variable y = Multiply(x, w);
  w.MoveData(Tensor());
  w.MoveData(Row({3, 4}));
  BackwardFrom(y, Row({1, 1}));
  EXPECT_THAT(GradOf(x), ElementsAre(3, 4));
}

TEST_F(VariableTest, EdgesLeadToTheMakerOrTheLeaf) {
  Variable leaf = Variable::Leaf(Row({1}));
  Variable y = Add(leaf, Scale(leaf, 2.0));
  const std::vector<Edge>& inputs = y.grad_fn()->inputs();
  EXPECT_TRUE(inputs[0].is_leaf());
  EXPECT_EQ(inputs[0].leaf.state(), leaf.state());
  EXPECT_STREQ(inputs[1].node->name(), "Scale");
  EXPECT_FALSE(EdgeTo(Variable(Row({1}))).needs_grad());
  EXPECT_FALSE(EdgeTo(Variable()).needs_grad());
  EXPECT_GT(y.grad_fn()->sequence(), inputs[1].node->sequence());
}

}  // namespace
}  // namespace meshfold::testing
