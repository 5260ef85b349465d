#include "core/data/split.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/core/data/memory_dataset.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

// The tokens of a CountingDataset that the spans cover.
std::vector<int64_t> TokensOf(const Dataset& dataset, const std::vector<DocumentSpan>& spans) {
  std::vector<int64_t> tokens;
  for (const DocumentSpan& span : spans) {
    std::vector<int32_t> read(span.length);
    MF_EXPECT_OK(dataset.Read(span.document, span.begin, span.length, read.data()));
    tokens.insert(tokens.end(), read.begin(), read.end());
  }
  return tokens;
}

// Every token is in exactly one part.
void ExpectPartition(const Dataset& dataset, const DocumentSplit& split) {
  std::vector<int64_t> train = TokensOf(dataset, split.train);
  std::vector<int64_t> validation = TokensOf(dataset, split.validation);
  std::set<int64_t> all(train.begin(), train.end());
  all.insert(validation.begin(), validation.end());
  EXPECT_EQ(static_cast<int64_t>(all.size()), NumTokens(dataset));
  EXPECT_EQ(static_cast<int64_t>(train.size() + validation.size()), NumTokens(dataset));
}

TEST(SplitTest, WithoutAFractionAllDocumentsTrain) {
  auto dataset = CountingDataset({3, 0, 2});
  auto split = SplitDataset(*dataset, {});
  MF_ASSERT_OK(split);
  ASSERT_EQ(split->train.size(), 2u) << "empty documents are left out";
  EXPECT_EQ(split->train[1].document, 2);
  EXPECT_EQ(split->train[1].length, 2);
  EXPECT_TRUE(split->validation.empty());
}

TEST(SplitTest, HoldsOutWholeDocuments) {
  auto dataset = CountingDataset(std::vector<int64_t>(20, 7));
  auto split = SplitDataset(*dataset, {.validation_fraction = 0.25, .seed = 3});
  MF_ASSERT_OK(split);
  EXPECT_EQ(split->validation.size(), 5u);
  EXPECT_EQ(split->train.size(), 15u);
  ExpectPartition(*dataset, *split);
  auto again = SplitDataset(*dataset, {.validation_fraction = 0.25, .seed = 3});
  EXPECT_EQ(TokensOf(*dataset, again->validation), TokensOf(*dataset, split->validation));
  auto other = SplitDataset(*dataset, {.validation_fraction = 0.25, .seed = 4});
  EXPECT_NE(TokensOf(*dataset, other->validation), TokensOf(*dataset, split->validation));
}

TEST(SplitTest, HoldsOutBlocksOfLongDocuments) {
  auto dataset = CountingDataset({1003, 5});
  auto split = SplitDataset(
      *dataset, {.validation_fraction = 0.2, .by = SplitBy::kBlock, .block_length = 10, .seed = 1});
  MF_ASSERT_OK(split);
  ExpectPartition(*dataset, *split);
  // 102 blocks, of which 20 validate; two of them may be short.
  int64_t held_out = NumTokens(split->validation);
  EXPECT_GE(held_out, 20 * 10 - 12);
  EXPECT_LE(held_out, 20 * 10);
  EXPECT_LT(split->train.size(), 83u) << "neighbouring blocks are joined";
  for (const DocumentSpan& span : split->train) {
    EXPECT_EQ(span.begin % 10, 0);
    EXPECT_EQ(span.document, span.begin < 1003 && span.document == 0 ? 0 : 1);
  }
}

TEST(SplitTest, BlocksOfDifferentDocumentsAreNotJoined) {
  // A block that trains often starts where the last one of the document before ended.
  auto dataset = CountingDataset(std::vector<int64_t>(40, 20));
  auto split = SplitDataset(
      *dataset, {.validation_fraction = 0.5, .by = SplitBy::kBlock, .block_length = 10});
  MF_ASSERT_OK(split);
  ExpectPartition(*dataset, *split);
}

TEST(SplitTest, GivesEachPartAtLeastOne) {
  auto dataset = CountingDataset({5, 5, 5});
  EXPECT_EQ(SplitDataset(*dataset, {.validation_fraction = 0.01})->validation.size(), 1u);
  EXPECT_EQ(SplitDataset(*dataset, {.validation_fraction = 0.99})->train.size(), 1u);
}

TEST(SplitTest, RefusesWhatCannotBeSplit) {
  auto one = CountingDataset({100, 0});
  EXPECT_TRUE(FailsWith(SplitDataset(*one, {.validation_fraction = 0.1}),
                        absl::StatusCode::kInvalidArgument,
                        "'memory' has 1 documents, too few to keep some for validation; split it "
                        "by block"));
  EXPECT_TRUE(FailsWith(SplitDataset(*one, {.validation_fraction = 1}),
                        absl::StatusCode::kInvalidArgument, "fraction 1 out of range"));
  EXPECT_TRUE(FailsWith(SplitDataset(*one, {.validation_fraction = -0.1}),
                        absl::StatusCode::kInvalidArgument, "out of range"));
  EXPECT_TRUE(FailsWith(SplitDataset(*one, {.validation_fraction = 0.1, .by = SplitBy::kBlock}),
                        absl::StatusCode::kInvalidArgument, "block length 0"));
}

}  // namespace
}  // namespace meshfold
