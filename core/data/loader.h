// Batches of packed samples: the stream of training samples, and the validation set.
//
// Training sample k (k = 0, 1, ...) is a pure function of the datasets and the options below: the
// blend says which dataset it comes from and the how-manieth of that dataset's samples it is; a
// dataset's samples are counted through epochs that each have their own shuffle of documents and of
// samples (key "shuffle/epoch/E"), in which no sample occurs twice. Step t takes samples
// [t * global_batch_size, (t+1) * global_batch_size), cut into micro-batches first and then over
// the data parts, so neither the number of data parts nor a resume changes which samples a step
// has.
//
// What is left over. Training: batches are always full, since the stream of samples goes on into
// the next epoch; the tokens that an epoch's packing leaves over (under one sequence a dataset in
// kStream) are not trained on in that epoch. Validation: nothing is left out; the last sequence of
// a dataset and the last batch are filled up with padding, which counts in no loss.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/blend.h"
#include "core/data/dataset.h"
#include "core/data/packing.h"
#include "core/data/split.h"

namespace meshfold {

struct LoaderOptions {
  PackingOptions packing;
  int64_t global_batch_size = 1;  // samples a step, over all data parts
  int64_t num_micro_batches = 1;  // divides global_batch_size
  int64_t data_part = 0;          // which part this process reads, in [0, num_data_parts)
  int64_t num_data_parts = 1;     // divides global_batch_size / num_micro_batches
  uint64_t seed = 0;
  bool shuffle = true;
  double validation_fraction = 0;  // of each dataset
  SplitBy split_by = SplitBy::kDocument;
  int64_t vocab_size = 0;  // larger ids are an error; 0: not checked
};

// Which sample it is, the same on every layout: sample `index` of the packing of `epoch`.
struct SampleId {
  int dataset = 0;
  int64_t epoch = 0;
  int64_t index = 0;
  friend bool operator==(const SampleId& a, const SampleId& b) {
    return a.dataset == b.dataset && a.epoch == b.epoch && a.index == b.index;
  }
  friend bool operator<(const SampleId& a, const SampleId& b) {
    return std::tie(a.dataset, a.epoch, a.index) < std::tie(b.dataset, b.epoch, b.index);
  }
};

// Sequences of S tokens one after another: T = num_sequences * S positions, the same for every
// micro-batch and part.
struct MicroBatch {
  std::vector<int32_t> tokens;      // [T]
  std::vector<int32_t> targets;     // [T], kIgnoredTarget where no loss counts
  std::vector<int32_t> positions;   // [T], from 0 in each packed document
  std::vector<int32_t> cu_seqlens;  // [documents + 1], from 0 to T; sequence borders are in it
  std::vector<uint8_t>
      is_padding;  // [T], 1 where there is no token: leave out of router statistics
  std::vector<SampleId> sample_ids;  // of the real samples, in order
  int64_t num_sequences = 0;
  int64_t num_valid = 0;  // targets that count
  int64_t num_padding = 0;
};

// What one data part reads in a step.
struct GlobalBatch {
  int64_t first_sample = 0;  // number of the step's first sample, over all parts
  int64_t num_samples = 0;   // real samples of the step, over all parts
  int64_t num_valid = 0;  // of this part's micro-batches; sum over the parts for the loss's divisor
  std::vector<MicroBatch> micro_batches;
};

struct WeightedDataset {
  std::shared_ptr<const Dataset> dataset;
  double weight = 1;
};

// Everything a resume needs.
struct LoaderState {
  int64_t consumed_samples = 0;
  // Tells other data or other options from the saved ones; 0 = do not compare. Batch size,
  // micro-batches and data parts are not in it: they may change at a resume.
  uint64_t fingerprint = 0;
};

// Global numbers of the samples that a data part has in one micro-batch of a batch that starts at
// sample 0: [first, second).
std::pair<int64_t, int64_t> MicroBatchRange(const LoaderOptions& options, int64_t micro_batch);

// Single-threaded; one a process.
class Loader {
 public:
  // InvalidArgument, with the numbers, for sizes that do not divide, a dataset without a single
  // sample of training or, with a fraction above 0, of validation, or options out of range.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(std::vector<WeightedDataset> datasets,
                                                        const LoaderOptions& options);

  // This part's batch of the next step. After an error nothing is consumed.
  absl::StatusOr<GlobalBatch> Next();
  // The batch that starts at training sample `first_sample`, without moving.
  absl::StatusOr<GlobalBatch> TrainBatch(int64_t first_sample);

  // Validation batches 0, 1, ... num_validation_batches() - 1 hold every validation sample once,
  // dataset after dataset, in document order; the last may hold fewer than global_batch_size.
  int64_t num_validation_batches() const;
  int64_t num_validation_samples() const { return num_validation_samples_; }
  absl::StatusOr<GlobalBatch> ValidationBatch(int64_t i);

  LoaderState state() const { return {consumed_samples_, fingerprint_}; }
  // InvalidArgument for a negative count; FailedPrecondition when the fingerprint differs.
  absl::Status Restore(const LoaderState& state);

  int num_datasets() const { return static_cast<int>(sources_.size()); }
  // Training samples in an epoch of a dataset.
  int64_t samples_per_epoch(int dataset) const { return sources_[dataset].samples_per_epoch; }
  // Training sample k.
  SampleId IdOf(int64_t k);
  // Documents, tokens, samples, what is left over: lines for the log.
  std::string Summary() const;

 private:
  struct Source {
    std::shared_ptr<const Dataset> dataset;
    DocumentSplit split;
    int64_t samples_per_epoch = 0;
    int64_t dropped_tokens = 0;  // an epoch
    std::unique_ptr<SampleIndex> validation;
    std::map<int64_t, std::unique_ptr<SampleIndex>> epochs;  // the last two used
  };

  Loader(const LoaderOptions& options, Blend blend);
  absl::Status AddSource(std::shared_ptr<const Dataset> dataset);
  uint64_t ComputeFingerprint() const;
  PassOptions PassOf(int dataset, int64_t epoch) const;
  const SampleIndex& EpochIndex(int dataset, int64_t epoch);
  absl::StatusOr<PackedSample> TrainSample(const SampleId& id);
  absl::StatusOr<PackedSample> ValidationSample(const SampleId& id);
  SampleId ValidationIdOf(int64_t k) const;
  absl::StatusOr<GlobalBatch> MakeBatch(int64_t first_sample, int64_t num_samples, bool train);

  LoaderOptions options_;
  Blend blend_;
  std::vector<Source> sources_;
  int64_t num_validation_samples_ = 0;
  uint64_t fingerprint_ = 0;
  int64_t consumed_samples_ = 0;
};

}  // namespace meshfold
