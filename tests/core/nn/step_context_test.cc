#include "core/nn/step_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;

class StepContextTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

TEST_F(StepContextTest, PositionsRestartInEachDocument) {
  PackedBatch batch = MakePackedBatch({5, 6, 7, 8, 9}, {}, {0, 2, 2, 5});
  EXPECT_THAT(ToVector<int32_t>(batch.positions), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(ToVector<int32_t>(batch.tokens), ElementsAre(5, 6, 7, 8, 9));
  EXPECT_EQ(batch.num_tokens(), 5);
  EXPECT_FALSE(batch.targets.defined());
  EXPECT_FALSE(batch.valid.defined());
}

TEST_F(StepContextTest, PaddingIsMarked) {
  PackedBatch batch = MakePackedBatch({5, 6, 7, 0, 0}, {6, 7, -1, -1, -1}, {0, 3, 5}, 2);
  EXPECT_EQ(batch.num_padding, 2);
  EXPECT_THAT(ToVector<int32_t>(batch.valid), ElementsAre(1, 1, 1, 0, 0));
  EXPECT_THAT(ToVector<int32_t>(batch.targets), ElementsAre(6, 7, -1, -1, -1));
  EXPECT_THAT(ToVector<int32_t>(batch.positions), ElementsAre(0, 1, 2, 0, 1));
}

TEST_F(StepContextTest, SeqlensThatEndElsewhereAreABug) {
  EXPECT_DEATH(MakePackedBatch({5, 6}, {}, {0, 3}), "cu_seqlens end at 3 of 2 tokens");
}

TEST_F(StepContextTest, AttachedLossesAreLoggedAndTakeEffect) {
  StepContext step(RandomBatch({0, 2}), {});
  Variable x = Variable::Leaf(RandomTensor("x", {2, 3})), z = Variable::Leaf(MakeTensor({4}, {1}));
  Variable y = step.AttachLoss(x, "balance", Scale(z, 0.25));
  ASSERT_EQ(step.attached_losses().size(), 1u);
  EXPECT_EQ(step.attached_losses()[0].name, "balance");
  ExpectClose(step.attached_losses()[0].value, std::vector<double>{1.0}, 0);
  Backward({Root{y, RandomTensor("dy", {2, 3})}}, {});
  ExpectClose(z.grad().tensor(), std::vector<double>{0.25}, 0);
}

TEST_F(StepContextTest, SideOutputsAreIgnoredWhileRecomputing) {
  StepContext step(RandomBatch({0, 2}), {});
  Variable x(RandomTensor("x", {2, 3})), z = Variable::Leaf(MakeTensor({4}, {1}));
  EXPECT_FALSE(step.recomputing());
  step.set_recomputing(true);
  EXPECT_TRUE(step.recomputing());
  Variable y = step.AttachLoss(x, "balance", z);
  step.AddExpertCounts({"layers.0.moe", MakeIds({1}, {1}), MakeIds({1}, {1})});
  EXPECT_TRUE(step.attached_losses().empty());
  EXPECT_TRUE(step.expert_counts().empty());
  EXPECT_TRUE(y.requires_grad());  // the graph is the same, so that it can be replayed
  step.set_recomputing(false);
  step.AddExpertCounts({"layers.0.moe", MakeIds({1}, {1}), MakeIds({1}, {1})});
  EXPECT_EQ(step.expert_counts().size(), 1u);
}

}  // namespace
}  // namespace meshfold::testing
