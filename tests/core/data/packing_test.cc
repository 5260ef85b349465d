#include "core/data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "tests/core/data/memory_dataset.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

using Ints = std::vector<int32_t>;

std::vector<DocumentSpan> WholeDocuments(const Dataset& dataset) {
  return SplitDataset(dataset, {})->train;
}

PackedSample Pack(const Dataset& dataset, const PackingOptions& packing, int64_t sample,
                  const PassOptions& pass = {}) {
  std::vector<DocumentSpan> spans = WholeDocuments(dataset);
  auto index = BuildSampleIndex(spans, packing, pass);
  auto packed = PackSample(dataset, spans, index->Segments(sample), packing, 0);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *packed;
}

TEST(StreamPackingTest, CutsAcrossDocumentsWithTheMask) {
  auto dataset = CountingDataset({3, 5, 4});  // 0-2, 3-7, 8-11
  PackingOptions packing{.seq_length = 5};
  PackedSample first = Pack(*dataset, packing, 0);
  EXPECT_EQ(first.tokens, Ints({0, 1, 2, 3, 4}));
  EXPECT_EQ(first.targets, Ints({1, 2, -100, 4, 5}));
  EXPECT_EQ(first.positions, Ints({0, 1, 2, 0, 1}));
  EXPECT_EQ(first.cu_seqlens, Ints({0, 3, 5}));
  EXPECT_EQ(first.num_valid, 4);
  EXPECT_EQ(first.num_padding, 0);
  PackedSample second = Pack(*dataset, packing, 1);
  EXPECT_EQ(second.tokens, Ints({5, 6, 7, 8, 9}));
  EXPECT_EQ(second.targets, Ints({6, 7, -100, 9, 10}));
  EXPECT_EQ(second.positions, Ints({0, 1, 2, 0, 1}));
}

TEST(StreamPackingTest, WithoutTheMaskASequenceIsOneDocument) {
  auto dataset = CountingDataset({3, 5, 4});
  PackedSample sample = Pack(*dataset, {.seq_length = 5, .document_mask = false}, 0);
  EXPECT_EQ(sample.tokens, Ints({0, 1, 2, 3, 4}));
  EXPECT_EQ(sample.targets, Ints({1, 2, 3, 4, 5}));
  EXPECT_EQ(sample.positions, Ints({0, 1, 2, 3, 4}));
  EXPECT_EQ(sample.cu_seqlens, Ints({0, 5}));
  EXPECT_EQ(sample.num_valid, 5);
}

TEST(StreamPackingTest, ASequenceThatEndsWithItsDocumentHasNoLastTarget) {
  auto dataset = CountingDataset({5, 5});
  EXPECT_EQ(Pack(*dataset, {.seq_length = 5}, 0).targets, Ints({1, 2, 3, 4, -100}));
  EXPECT_EQ(Pack(*dataset, {.seq_length = 5, .document_mask = false}, 0).targets,
            Ints({1, 2, 3, 4, 5}));
}

TEST(StreamPackingTest, NumberOfSamplesFollowsTheFormula) {
  for (int64_t total : {0, 1, 2, 5, 6, 10, 11, 12, 16}) {
    auto dataset = CountingDataset({total});
    std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
    auto index = BuildSampleIndex(spans, {.seq_length = 5}, {});
    int64_t expected = total == 0 ? 0 : (total - 1) / 5;
    EXPECT_EQ(index->num_samples(), expected) << total;
    EXPECT_EQ(index->num_dropped_tokens(), expected == 0 ? total : total - 5 * expected - 1);
    auto kept = BuildSampleIndex(spans, {.seq_length = 5}, {.keep_tail = true});
    EXPECT_EQ(kept->num_samples(), total < 2 ? 0 : (total + 3) / 5) << total;
  }
}

TEST(StreamPackingTest, KeptTailIsPaddedAndItsPaddingDoesNotCount) {
  auto dataset = CountingDataset({4, 4});
  PackedSample tail = Pack(*dataset, {.seq_length = 5, .pad_token = 9}, 1, {.keep_tail = true});
  EXPECT_EQ(tail.tokens, Ints({5, 6, 7, 9, 9}));
  EXPECT_EQ(tail.targets, Ints({6, 7, -100, -100, -100}));
  EXPECT_EQ(tail.positions, Ints({0, 1, 2, 0, 1}));
  EXPECT_EQ(tail.cu_seqlens, Ints({0, 3, 5}));
  EXPECT_EQ(tail.num_padding, 2);
  EXPECT_EQ(tail.num_valid, 2);
  PackedSample unmasked =
      Pack(*dataset, {.seq_length = 5, .document_mask = false}, 1, {.keep_tail = true});
  EXPECT_EQ(unmasked.targets, tail.targets);
  EXPECT_EQ(unmasked.cu_seqlens, tail.cu_seqlens);
}

// Over a pass with the tail kept, each token but the first of a document is a target once.
TEST(StreamPackingTest, EveryTokenIsATargetOnceInAShuffledPass) {
  auto dataset = CountingDataset({3, 1, 8, 13, 2, 1, 40, 5});
  std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
  PackingOptions packing{.seq_length = 6};
  PassOptions pass{.shuffle = MakeRngKey(1, "test"), .keep_tail = true};
  auto index = BuildSampleIndex(spans, packing, pass);
  std::map<int32_t, int> seen;
  for (int64_t i = 0; i < index->num_samples(); ++i) {
    auto sample = PackSample(*dataset, spans, index->Segments(i), packing, 0);
    MF_ASSERT_OK(sample);
    ASSERT_EQ(sample->tokens.size(), 6u);
    EXPECT_EQ(sample->cu_seqlens.back(), 6);
    for (int t = 0; t < 6; ++t) {
      if (sample->targets[t] == kIgnoredTarget) continue;
      ++seen[sample->targets[t]];
      EXPECT_EQ(sample->targets[t], sample->tokens[t] + 1) << "the next token of the document";
    }
  }
  EXPECT_EQ(seen.size(), 73u - 8u);
  for (auto [token, count] : seen) EXPECT_EQ(count, 1) << token;
}

TEST(StreamPackingTest, ShufflesAreDifferentAndOfEqualNumber) {
  auto dataset = CountingDataset({3, 1, 8, 13, 2, 1, 40, 5});
  std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
  std::set<std::vector<int64_t>> orders;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    auto index = BuildSampleIndex(spans, {.seq_length = 6}, {.shuffle = MakeRngKey(seed, "test")});
    EXPECT_EQ(index->num_samples(), 12);
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 12; ++i) {
      for (const Segment& segment : index->Segments(i)) order.push_back(segment.span);
    }
    orders.insert(order);
  }
  EXPECT_GT(orders.size(), 8u);
}

TEST(DocumentPackingTest, PadsWithoutLookingAtIds) {
  // End-of-text and padding share id 0: the real zeros count, the padding does not.
  MemoryDataset dataset({{5, 0, 7, 0}});
  PackedSample sample =
      Pack(dataset, {.seq_length = 6, .mode = PackingMode::kDocument, .pad_token = 0}, 0);
  EXPECT_EQ(sample.tokens, Ints({5, 0, 7, 0, 0, 0}));
  EXPECT_EQ(sample.targets, Ints({0, 7, 0, -100, -100, -100}));
  EXPECT_EQ(sample.num_valid, 3);
  EXPECT_EQ(sample.num_padding, 2);
  EXPECT_EQ(sample.cu_seqlens, Ints({0, 4, 6}));
  EXPECT_EQ(sample.positions, Ints({0, 1, 2, 3, 0, 1}));
}

TEST(DocumentPackingTest, PackedDocumentsAreWhatTheyAreAlone) {
  auto dataset = CountingDataset({3, 5});
  PackingOptions packing{.seq_length = 8, .mode = PackingMode::kDocument};
  PackedSample packed = Pack(*dataset, packing, 0);
  // Longest first.
  EXPECT_EQ(packed.tokens, Ints({3, 4, 5, 6, 7, 0, 1, 2}));
  EXPECT_EQ(packed.cu_seqlens, Ints({0, 5, 8}));
  EXPECT_EQ(packed.positions, Ints({0, 1, 2, 3, 4, 0, 1, 2}));
  auto alone = CountingDataset({3});
  PackedSample single = Pack(*alone, {.seq_length = 3, .mode = PackingMode::kDocument}, 0);
  EXPECT_EQ(Ints(packed.targets.begin() + 5, packed.targets.end()), single.targets);
  EXPECT_EQ(Ints(packed.positions.begin() + 5, packed.positions.end()), single.positions);
}

TEST(DocumentPackingTest, BestFitFillsTheFullestSequence) {
  // 6, 5, 4, 3, 2 into 10: 6+4 and 5+3+2.
  auto dataset = CountingDataset({2, 3, 4, 5, 6});
  std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
  auto index = BuildSampleIndex(spans, {.seq_length = 10, .mode = PackingMode::kDocument}, {});
  ASSERT_EQ(index->num_samples(), 2);
  EXPECT_EQ(index->Segments(0), (std::vector<Segment>{{4, 0, 6}, {2, 0, 4}}));
  EXPECT_EQ(index->Segments(1), (std::vector<Segment>{{3, 0, 5}, {1, 0, 3}, {0, 0, 2}}));
}

TEST(DocumentPackingTest, LongDocumentsAreCutAndKeepTheirTargets) {
  auto dataset = CountingDataset({10, 9});  // 0-9, 10-18
  std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
  PackingOptions packing{.seq_length = 4, .mode = PackingMode::kDocument};
  auto index = BuildSampleIndex(spans, packing, {});
  // 4 + 4 + 2 and 4 + 4 + 1; the last token alone predicts nothing.
  ASSERT_EQ(index->num_samples(), 5);
  EXPECT_EQ(index->num_dropped_tokens(), 1);
  EXPECT_EQ(Pack(*dataset, packing, 0).targets, Ints({1, 2, 3, 4}));
  EXPECT_EQ(Pack(*dataset, packing, 1).targets, Ints({5, 6, 7, 8}));
  EXPECT_EQ(Pack(*dataset, packing, 3).targets, Ints({15, 16, 17, 18}));
  EXPECT_EQ(Pack(*dataset, packing, 4).targets, Ints({9, -100, -100, -100}));
  EXPECT_EQ(Pack(*dataset, packing, 4).positions, Ints({0, 1, 0, 1}));
}

TEST(DocumentPackingTest, NumberOfSamplesDoesNotDependOnTheShuffle) {
  std::vector<int64_t> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(1 + (i * 37) % 53);
  auto dataset = CountingDataset(lengths);
  std::vector<DocumentSpan> spans = WholeDocuments(*dataset);
  PackingOptions packing{.seq_length = 32, .mode = PackingMode::kDocument};
  int64_t expected = BuildSampleIndex(spans, packing, {})->num_samples();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    auto index = BuildSampleIndex(spans, packing, {.shuffle = MakeRngKey(seed, "test")});
    ASSERT_EQ(index->num_samples(), expected);
    int64_t tokens = index->num_dropped_tokens();
    for (int64_t i = 0; i < expected; ++i) {
      int64_t sum = 0;
      for (const Segment& segment : index->Segments(i)) sum += segment.count;
      EXPECT_LE(sum, 32);
      tokens += sum;
    }
    EXPECT_EQ(tokens, NumTokens(*dataset)) << "each token once, or counted as dropped";
  }
}

TEST(PackSampleTest, IdsOutsideTheVocabularyAreAnErrorWithThePlace) {
  MemoryDataset dataset({{1, 2, 3}, {4, 500, 6}}, "corpus");
  std::vector<DocumentSpan> spans = WholeDocuments(dataset);
  PackingOptions packing{.seq_length = 3};
  std::vector<Segment> segments = {{1, 0, 3}};
  MF_EXPECT_OK(PackSample(dataset, spans, segments, packing, 501));
  EXPECT_TRUE(FailsWith(PackSample(dataset, spans, segments, packing, 500),
                        absl::StatusCode::kOutOfRange,
                        "'corpus': id 500 out of range [0, 500) at token 1 of document 1"));
}

}  // namespace
}  // namespace meshfold
