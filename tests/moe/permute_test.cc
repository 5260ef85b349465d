#include "moe/permute.h"

#include <gmock/gmock.h>

#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using ::testing::ElementsAre;

class PermuteTest : public MoeTest {};

std::vector<int64_t> Values(const Tensor& tensor) { return ToVector<int64_t>(tensor); }

// Tokens 0..3 with experts (2,0) (1,2) (0,2) (2,1) of 4.
Tensor Ids() { return TensorFromVector<int32_t>({2, 0, 1, 2, 0, 2, 2, 1}, {4, 2}); }

TEST_F(PermuteTest, SortsByExpertThenToken) {
  SortedTokens sorted = SortTokens(Ids(), Tensor(), 4);
  EXPECT_THAT(sorted.routed_E, ElementsAre(2, 2, 4, 0));
  EXPECT_EQ(sorted.kept_E, sorted.routed_E);
  EXPECT_THAT(sorted.rows.offsets, ElementsAre(0, 2, 4, 8, 8));
  EXPECT_THAT(Values(sorted.index.row_to_slot), ElementsAre(1, 4, 2, 7, 0, 3, 5, 6));
  EXPECT_THAT(Values(sorted.index.token_rows), ElementsAre(0, 4, 2, 5, 1, 6, 3, 7));
  EXPECT_THAT(Values(sorted.routed), ElementsAre(2, 2, 4, 0));
  EXPECT_EQ(sorted.num_tokens, 4);
  EXPECT_EQ(sorted.num_dropped(), 0);
}

TEST_F(PermuteTest, PaddingHasNoRowsAndIsNotCounted) {
  Tensor valid = TensorFromVector<uint8_t>({1, 0, 1, 0}, {4});
  SortedTokens sorted = SortTokens(Ids(), valid, 4);
  EXPECT_THAT(sorted.routed_E, ElementsAre(2, 0, 2, 0));
  EXPECT_EQ(sorted.num_tokens, 2);
  EXPECT_THAT(Values(sorted.index.row_to_slot), ElementsAre(1, 4, 0, 5));
  EXPECT_THAT(Values(sorted.index.token_rows), ElementsAre(0, 2, -1, -1, 1, 3, -1, -1));
}

TEST_F(PermuteTest, DropsLaterRowsBeyondTheLimit) {
  SortedTokens sorted = SortTokens(Ids(), Tensor(), 4);
  LimitRows(Ids(), Tensor(), {3, 3, 3, 3}, sorted);
  EXPECT_THAT(sorted.routed_E, ElementsAre(2, 2, 4, 0));
  EXPECT_THAT(sorted.kept_E, ElementsAre(2, 2, 3, 0));
  EXPECT_THAT(Values(sorted.kept), ElementsAre(2, 2, 3, 0));
  EXPECT_THAT(Values(sorted.routed), ElementsAre(2, 2, 4, 0));
  EXPECT_EQ(sorted.num_dropped(), 1);
  EXPECT_THAT(Values(sorted.index.row_to_slot), ElementsAre(1, 4, 2, 7, 0, 3, 5));
  EXPECT_THAT(Values(sorted.index.token_rows), ElementsAre(0, 4, 2, 5, 1, 6, 3, -1));
}

TEST_F(PermuteTest, EachExpertHasItsOwnLimit) {
  SortedTokens sorted = SortTokens(Ids(), Tensor(), 4);
  LimitRows(Ids(), Tensor(), {0, 5, 1, 9}, sorted);
  EXPECT_THAT(sorted.kept_E, ElementsAre(0, 2, 1, 0));
  EXPECT_THAT(Values(sorted.index.row_to_slot), ElementsAre(2, 7, 0));
}

TEST_F(PermuteTest, SortsReceivedTokensByGroup) {
  RowIndex index = SortByGroup(TensorFromVector<int32_t>({-1, 1, 0, 1, -1, -1}, {3, 2}),
                               {.offsets = {0, 1, 3, 3}});
  EXPECT_THAT(Values(index.row_to_slot), ElementsAre(2, 1, 3));
  EXPECT_THAT(Values(index.token_rows), ElementsAre(1, -1, 0, 2, -1, -1));
}

TEST_F(PermuteTest, LimitsThatFitChangeNothing) {
  SortedTokens sorted = SortTokens(Ids(), Tensor(), 4);
  const void* table = sorted.index.token_rows.raw();
  LimitRows(Ids(), Tensor(), {4, 2, 4, 0}, sorted);
  EXPECT_EQ(sorted.index.token_rows.raw(), table) << "sorted again for nothing";
  EXPECT_EQ(sorted.num_dropped(), 0);
}

TEST_F(PermuteTest, NoTokens) {
  SortedTokens sorted = SortTokens(Tensor::Empty({0, 2}, DType::kI32), Tensor(), 3);
  EXPECT_THAT(sorted.rows.offsets, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(sorted.index.row_to_slot.dim(0), 0);
  EXPECT_EQ(sorted.num_tokens, 0);
}

// Yields to count with: SortTokens is the one place of the layer where a fiber gives way.
class CountingYielder : public Yielder {
 public:
  void Yield() override { ++count; }
  int count = 0;
};

TEST_F(PermuteTest, YieldsExactlyOnce) {
  CountingYielder yielder;
  ExecContext context = CurrentContext();
  context.yielder = &yielder;
  ScopedExecContext scope(context);
  SortedTokens sorted = SortTokens(Ids(), Tensor(), 4);
  EXPECT_EQ(yielder.count, 1);
  LimitRows(Ids(), Tensor(), {1, 1, 1, 1}, sorted);
  EXPECT_EQ(yielder.count, 1);
}

}  // namespace
}  // namespace meshfold::moe
