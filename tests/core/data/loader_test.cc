#include "core/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/core/data/memory_dataset.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

// One dataset of 10 samples of 4 tokens.
std::vector<WeightedDataset> TenSamples() { return {{CountingDataset({12, 20, 9}), 1}}; }

LoaderOptions Options(int64_t global_batch_size) {
  return {.packing = {.seq_length = 4}, .global_batch_size = global_batch_size, .seed = 5};
}

std::unique_ptr<Loader> Make(std::vector<WeightedDataset> datasets, const LoaderOptions& options) {
  auto loader = Loader::Create(std::move(datasets), options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  return std::move(loader).value();
}

std::vector<SampleId> IdsOf(const GlobalBatch& batch) {
  std::vector<SampleId> ids;
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    ids.insert(ids.end(), micro_batch.sample_ids.begin(), micro_batch.sample_ids.end());
  }
  return ids;
}

std::vector<int32_t> TokensOf(const GlobalBatch& batch) {
  std::vector<int32_t> tokens;
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    tokens.insert(tokens.end(), micro_batch.tokens.begin(), micro_batch.tokens.end());
  }
  return tokens;
}

TEST(LoaderTest, AnEpochHasEverySampleOnceAndTheNextIsShuffledAnew) {
  std::unique_ptr<Loader> loader = Make(TenSamples(), Options(2));
  ASSERT_EQ(loader->samples_per_epoch(0), 10);
  std::vector<std::vector<int64_t>> epochs(3);
  for (int step = 0; step < 15; ++step) {
    auto batch = loader->Next();
    MF_ASSERT_OK(batch);
    for (const SampleId& id : IdsOf(*batch)) {
      EXPECT_EQ(id.epoch, step / 5);
      epochs[id.epoch].push_back(id.index);
    }
  }
  for (const std::vector<int64_t>& epoch : epochs) {
    std::set<int64_t> distinct(epoch.begin(), epoch.end());
    EXPECT_EQ(distinct.size(), 10u);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
  EXPECT_FALSE(std::is_sorted(epochs[0].begin(), epochs[0].end()));
}

TEST(LoaderTest, BatchesWrapIntoTheNextEpoch) {
  std::unique_ptr<Loader> loader = Make(TenSamples(), Options(4));
  std::map<int64_t, std::set<int64_t>> seen;
  for (int step = 0; step < 5; ++step) {
    auto batch = loader->Next();
    MF_ASSERT_OK(batch);
    EXPECT_EQ(batch->num_samples, 4);
    EXPECT_EQ(batch->first_sample, 4 * step);
    for (const SampleId& id : IdsOf(*batch)) EXPECT_TRUE(seen[id.epoch].insert(id.index).second);
  }
  EXPECT_EQ(seen[0].size(), 10u);
  EXPECT_EQ(seen[1].size(), 10u);
}

TEST(LoaderTest, MicroBatchIsPackedSequencesOneAfterAnother) {
  LoaderOptions options = Options(2);
  options.shuffle = false;
  std::unique_ptr<Loader> loader = Make({{CountingDataset({6, 5}), 1}}, options);
  auto batch = loader->Next();
  MF_ASSERT_OK(batch);
  ASSERT_EQ(batch->micro_batches.size(), 1u);
  const MicroBatch& micro_batch = batch->micro_batches[0];
  using Ints = std::vector<int32_t>;
  EXPECT_EQ(micro_batch.tokens, Ints({0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(micro_batch.targets, Ints({1, 2, 3, 4, 5, -100, 7, 8}));
  EXPECT_EQ(micro_batch.positions, Ints({0, 1, 2, 3, 0, 1, 0, 1}));
  EXPECT_EQ(micro_batch.cu_seqlens, Ints({0, 4, 6, 8}));
  EXPECT_EQ(micro_batch.is_padding, std::vector<uint8_t>(8, 0));
  EXPECT_EQ(micro_batch.num_sequences, 2);
  EXPECT_EQ(micro_batch.num_valid, 7);
  EXPECT_EQ(batch->num_valid, 7);
}

// The step's samples per micro-batch do not depend on how many parts read them.
TEST(LoaderTest, DataPartsTogetherReadTheSameMicroBatches) {
  LoaderOptions whole = Options(12);
  whole.num_micro_batches = 3;
  std::unique_ptr<Loader> reference = Make(TenSamples(), whole);
  for (int step = 0; step < 3; ++step) {
    auto expected = reference->Next();
    MF_ASSERT_OK(expected);
    for (int64_t parts : {2, 4}) {
      std::vector<std::vector<SampleId>> ids(3);
      std::vector<std::vector<int32_t>> tokens(3);
      int64_t num_valid = 0;
      for (int64_t part = 0; part < parts; ++part) {
        LoaderOptions options = whole;
        options.num_data_parts = parts;
        options.data_part = part;
        std::unique_ptr<Loader> loader = Make(TenSamples(), options);
        auto batch = loader->TrainBatch(12 * step);
        MF_ASSERT_OK(batch);
        num_valid += batch->num_valid;
        for (int m = 0; m < 3; ++m) {
          const MicroBatch& micro_batch = batch->micro_batches[m];
          EXPECT_EQ(micro_batch.num_sequences, 4 / parts);
          ids[m].insert(ids[m].end(), micro_batch.sample_ids.begin(), micro_batch.sample_ids.end());
          tokens[m].insert(tokens[m].end(), micro_batch.tokens.begin(), micro_batch.tokens.end());
        }
      }
      EXPECT_EQ(num_valid, expected->num_valid);
      for (int m = 0; m < 3; ++m) {
        EXPECT_EQ(ids[m], expected->micro_batches[m].sample_ids);
        EXPECT_EQ(tokens[m], expected->micro_batches[m].tokens);
      }
    }
  }
}

TEST(LoaderTest, ResumesInTheSecondEpochWithTheSameSamples) {
  std::unique_ptr<Loader> unbroken = Make(TenSamples(), Options(2));
  LoaderState state;
  std::vector<GlobalBatch> expected;
  for (int step = 0; step < 20; ++step) {
    if (step == 7) state = unbroken->state();
    auto batch = unbroken->Next();
    MF_ASSERT_OK(batch);
    if (step >= 7) expected.push_back(*std::move(batch));
  }
  EXPECT_EQ(state.consumed_samples, 14);
  std::unique_ptr<Loader> resumed = Make(TenSamples(), Options(2));
  MF_ASSERT_OK(resumed->Restore(state));
  for (const GlobalBatch& batch : expected) {
    auto again = resumed->Next();
    MF_ASSERT_OK(again);
    EXPECT_EQ(IdsOf(*again), IdsOf(batch));
    EXPECT_EQ(TokensOf(*again), TokensOf(batch));
  }
}

TEST(LoaderTest, ResumesWithAccumulationAndOtherDataParts) {
  LoaderOptions options = Options(8);
  options.num_micro_batches = 4;
  std::unique_ptr<Loader> unbroken = Make(TenSamples(), options);
  for (int step = 0; step < 5; ++step) MF_ASSERT_OK(unbroken->Next());
  LoaderState state = unbroken->state();
  EXPECT_EQ(state.consumed_samples, 40);
  auto expected = unbroken->Next();
  MF_ASSERT_OK(expected);
  std::vector<SampleId> ids;
  for (int64_t part = 0; part < 2; ++part) {
    options.num_data_parts = 2;
    options.data_part = part;
    std::unique_ptr<Loader> resumed = Make(TenSamples(), options);
    MF_ASSERT_OK(resumed->Restore(state));
    auto batch = resumed->Next();
    MF_ASSERT_OK(batch);
    std::vector<SampleId> own = IdsOf(*batch);
    ids.insert(ids.end(), own.begin(), own.end());
    EXPECT_EQ(resumed->state().consumed_samples, 48);
  }
  std::vector<SampleId> wanted = IdsOf(*expected);
  std::sort(ids.begin(), ids.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(ids, wanted);
}

TEST(LoaderTest, RestoreNoticesOtherData) {
  LoaderState state = Make(TenSamples(), Options(2))->state();
  state.consumed_samples = 6;
  LoaderOptions other_batch = Options(5);
  MF_EXPECT_OK(Make(TenSamples(), other_batch)->Restore(state));
  LoaderOptions other_seed = Options(2);
  other_seed.seed = 6;
  EXPECT_TRUE(FailsWith(Make(TenSamples(), other_seed)->Restore(state),
                        absl::StatusCode::kFailedPrecondition, "after 6 samples"));
  std::unique_ptr<Loader> other_data = Make({{CountingDataset({12, 20, 10}), 1}}, Options(2));
  EXPECT_TRUE(
      FailsWith(other_data->Restore(state), absl::StatusCode::kFailedPrecondition, "differ"));
  EXPECT_EQ(other_data->state().consumed_samples, 0);
  state.fingerprint = 0;
  MF_EXPECT_OK(other_data->Restore(state));
  EXPECT_TRUE(FailsWith(other_data->Restore({.consumed_samples = -1}),
                        absl::StatusCode::kInvalidArgument, "-1"));
}

TEST(LoaderTest, BlendsByWeightAndEachDatasetHasItsEpochs) {
  std::vector<WeightedDataset> datasets = {{CountingDataset({41}, "ten"), 3},
                                           {CountingDataset({9}, "two"), 1}};
  std::unique_ptr<Loader> loader = Make(datasets, Options(4));
  ASSERT_EQ(loader->samples_per_epoch(0), 10);
  ASSERT_EQ(loader->samples_per_epoch(1), 2);
  std::map<int, int64_t> counts;
  std::set<SampleId> seen;
  for (int step = 0; step < 10; ++step) {
    auto batch = loader->Next();
    MF_ASSERT_OK(batch);
    for (const SampleId& id : IdsOf(*batch)) {
      ++counts[id.dataset];
      EXPECT_TRUE(seen.insert(id).second) << "no sample twice in an epoch of its dataset";
    }
  }
  EXPECT_EQ(counts[0], 30);
  EXPECT_EQ(counts[1], 10);
  // Going back gives the same.
  auto first = loader->TrainBatch(0);
  MF_ASSERT_OK(first);
  std::unique_ptr<Loader> fresh = Make(datasets, Options(4));
  EXPECT_EQ(TokensOf(*first), TokensOf(*fresh->Next()));
}

TEST(LoaderTest, ValidationCoversEverySampleAndKeepsTheShortLastBatch) {
  // 200 documents of 5 tokens, half of which validate: 100 samples of one document.
  LoaderOptions options = Options(8);
  options.packing = {.seq_length = 5, .mode = PackingMode::kDocument};
  options.num_micro_batches = 2;
  options.validation_fraction = 0.5;
  std::unique_ptr<Loader> loader =
      Make({{CountingDataset(std::vector<int64_t>(200, 5)), 1}}, options);
  EXPECT_EQ(loader->num_validation_samples(), 100);
  ASSERT_EQ(loader->num_validation_batches(), 13);
  std::vector<SampleId> ids;
  int64_t num_valid = 0, num_samples = 0;
  for (int64_t i = 0; i < 13; ++i) {
    auto batch = loader->ValidationBatch(i);
    MF_ASSERT_OK(batch);
    ASSERT_EQ(batch->micro_batches.size(), 2u);
    for (const MicroBatch& micro_batch : batch->micro_batches) {
      EXPECT_EQ(micro_batch.tokens.size(), 20u) << "every micro-batch has the same shape";
      EXPECT_EQ(micro_batch.cu_seqlens.back(), 20);
    }
    std::vector<SampleId> own = IdsOf(*batch);
    ids.insert(ids.end(), own.begin(), own.end());
    num_valid += batch->num_valid;
    num_samples += batch->num_samples;
  }
  EXPECT_EQ(num_samples, 100);
  EXPECT_EQ(num_valid, 400);
  EXPECT_EQ(std::set<SampleId>(ids.begin(), ids.end()).size(), 100u);
  auto last = loader->ValidationBatch(12);
  EXPECT_EQ(last->num_samples, 4);
  EXPECT_EQ(last->micro_batches[0].sample_ids.size(), 4u);
  EXPECT_EQ(last->micro_batches[1].sample_ids.size(), 0u);
  EXPECT_EQ(last->micro_batches[1].num_valid, 0);
  EXPECT_EQ(last->micro_batches[1].num_padding, 20);
  EXPECT_EQ(last->micro_batches[1].is_padding, std::vector<uint8_t>(20, 1));
  EXPECT_TRUE(FailsWith(loader->ValidationBatch(13), absl::StatusCode::kOutOfRange, "13"));
}

TEST(LoaderTest, ValidationOverUnevenPartsCountsEverySampleOnce) {
  LoaderOptions options = Options(4);
  options.packing = {.seq_length = 5, .mode = PackingMode::kDocument};
  options.validation_fraction = 0.5;
  options.num_data_parts = 4;
  std::set<SampleId> ids;
  int64_t num_valid = 0;
  for (options.data_part = 0; options.data_part < 4; ++options.data_part) {
    std::unique_ptr<Loader> loader =
        Make({{CountingDataset(std::vector<int64_t>(20, 5)), 1}}, options);
    ASSERT_EQ(loader->num_validation_batches(), 3);
    for (int64_t i = 0; i < 3; ++i) {
      auto batch = loader->ValidationBatch(i);
      MF_ASSERT_OK(batch);
      num_valid += batch->num_valid;
      for (const SampleId& id : IdsOf(*batch)) EXPECT_TRUE(ids.insert(id).second);
    }
  }
  EXPECT_EQ(ids.size(), 10u);
  EXPECT_EQ(num_valid, 40);
}

TEST(LoaderTest, ValidationTokensAreNeverTrainedOn) {
  for (SplitBy by : {SplitBy::kDocument, SplitBy::kBlock}) {
    LoaderOptions options = Options(2);
    options.validation_fraction = 0.3;
    options.split_by = by;
    std::unique_ptr<Loader> loader = Make({{CountingDataset({30, 17, 25, 40, 8, 60}), 1}}, options);
    std::set<int32_t> trained, validated;
    for (int step = 0; step < 100; ++step) {
      auto batch = loader->Next();
      MF_ASSERT_OK(batch);
      for (const MicroBatch& micro_batch : batch->micro_batches) {
        trained.insert(micro_batch.tokens.begin(), micro_batch.tokens.end());
        trained.insert(micro_batch.targets.begin(), micro_batch.targets.end());
      }
    }
    trained.erase(kIgnoredTarget);
    for (int64_t i = 0; i < loader->num_validation_batches(); ++i) {
      auto batch = loader->ValidationBatch(i);
      MF_ASSERT_OK(batch);
      for (const MicroBatch& micro_batch : batch->micro_batches) {
        for (size_t t = 0; t < micro_batch.tokens.size(); ++t) {
          if (!micro_batch.is_padding[t]) validated.insert(micro_batch.tokens[t]);
          if (micro_batch.targets[t] != kIgnoredTarget) validated.insert(micro_batch.targets[t]);
        }
      }
    }
    EXPECT_EQ(trained.size() + validated.size(), 180u);
    for (int32_t token : validated) EXPECT_EQ(trained.count(token), 0u) << token;
  }
}

TEST(LoaderTest, ErrorsConsumeNothing) {
  LoaderOptions options = Options(2);
  options.vocab_size = 20;
  std::unique_ptr<Loader> loader = Make(TenSamples(), options);
  bool failed = false;
  for (int step = 0; step < 5 && !failed; ++step) {
    int64_t before = loader->state().consumed_samples;
    auto batch = loader->Next();
    failed = !batch.ok();
    if (!failed) continue;
    EXPECT_TRUE(FailsWith(batch, absl::StatusCode::kOutOfRange, "out of range [0, 20)"));
    EXPECT_EQ(loader->state().consumed_samples, before);
  }
  EXPECT_TRUE(failed);
}

TEST(LoaderTest, RefusesSizesThatDoNotFitWithTheNumbers) {
  auto refused = [](LoaderOptions options, absl::string_view reason) {
    EXPECT_TRUE(FailsWith(Loader::Create(TenSamples(), options), absl::StatusCode::kInvalidArgument,
                          reason));
  };
  LoaderOptions options = Options(6);
  options.num_micro_batches = 4;
  refused(options, "global batch size = 6 does not divide into micro-batches = 4");
  options.num_micro_batches = 2;
  options.num_data_parts = 2;
  refused(options, "samples a micro-batch = 3 does not divide into data parts = 2");
  options.num_data_parts = 3;
  options.data_part = 3;
  refused(options, "data part 3 out of range [0, 3)");
  refused(Options(0), "global batch size = 0");
  options = Options(1);
  options.packing.seq_length = 0;
  refused(options, "sequence length 0");
  options.packing = {.seq_length = 4, .mode = PackingMode::kDocument, .document_mask = false};
  refused(options, "needs the document mask");
  options.packing = {.seq_length = 4, .pad_token = 300};
  options.vocab_size = 256;
  refused(options, "pad token 300 out of range [0, 256)");
  options = Options(1);
  options.packing.seq_length = 100;
  refused(options, "'memory' has too little training data: 41 tokens in 3 documents");
  options = Options(4);
  options.packing.seq_length = int64_t{1} << 30;
  refused(options, "more than 2^31 - 1 positions");
  EXPECT_TRUE(
      FailsWith(Loader::Create({}, Options(1)), absl::StatusCode::kInvalidArgument, "no dataset"));
}

TEST(LoaderTest, SummaryTellsWhatIsLeftOver) {
  LoaderOptions options = Options(2);
  std::unique_ptr<Loader> loader = Make({{CountingDataset({12, 20, 12}, "corpus"), 1}}, options);
  std::string summary = loader->Summary();
  EXPECT_TRUE(absl::StrContains(summary, "'corpus'")) << summary;
  EXPECT_TRUE(absl::StrContains(summary,
                                "3 documents, 44 tokens, 10 samples an epoch, 3 tokens "
                                "left over an epoch"))
      << summary;
}

}  // namespace
}  // namespace meshfold
