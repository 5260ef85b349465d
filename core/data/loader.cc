#include "core/data/loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

absl::Status CheckDivides(int64_t whole, int64_t parts, absl::string_view whole_name,
                          absl::string_view parts_name) {
  if (whole > 0 && parts > 0 && whole % parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "[Loader] ", whole_name, " = ", whole, " does not divide into ", parts_name, " = ", parts));
}

absl::Status CheckOptions(const LoaderOptions& options) {
  const PackingOptions& packing = options.packing;
  if (packing.seq_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Loader] sequence length ", packing.seq_length, " is not positive"));
  }
  if (packing.mode == PackingMode::kDocument && !packing.document_mask) {
    return absl::InvalidArgumentError(
        "[Loader] packing whole documents needs the document mask: without it they see each other");
  }
  if (options.vocab_size < 0 || packing.pad_token < 0 ||
      (options.vocab_size > 0 && packing.pad_token >= options.vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("[Loader] pad token ", packing.pad_token,
                                                   " out of range [0, ", options.vocab_size, ")"));
  }
  MF_RETURN_IF_ERROR(CheckDivides(options.global_batch_size, options.num_micro_batches,
                                  "global batch size", "micro-batches"));
  int64_t samples = options.global_batch_size / options.num_micro_batches;
  MF_RETURN_IF_ERROR(
      CheckDivides(samples, options.num_data_parts, "samples a micro-batch", "data parts"));
  if (options.data_part < 0 || options.data_part >= options.num_data_parts) {
    return absl::InvalidArgumentError(absl::StrCat("[Loader] data part ", options.data_part,
                                                   " out of range [0, ", options.num_data_parts,
                                                   ")"));
  }
  if (samples / options.num_data_parts > INT32_MAX / packing.seq_length) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Loader] ", samples / options.num_data_parts, " sequences of ",
                     packing.seq_length, " tokens a micro-batch are more than 2^31 - 1 positions"));
  }
  return absl::OkStatus();
}

void AppendSample(const PackedSample& sample, MicroBatch& batch) {
  int32_t offset = static_cast<int32_t>(batch.tokens.size());
  auto append = [](const std::vector<int32_t>& from, std::vector<int32_t>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(sample.tokens, batch.tokens);
  append(sample.targets, batch.targets);
  append(sample.positions, batch.positions);
  for (size_t i = 1; i < sample.cu_seqlens.size(); ++i) {
    batch.cu_seqlens.push_back(offset + sample.cu_seqlens[i]);
  }
  batch.is_padding.resize(batch.tokens.size() - sample.num_padding, 0);
  batch.is_padding.resize(batch.tokens.size(), 1);
  ++batch.num_sequences;
  batch.num_valid += sample.num_valid;
  batch.num_padding += sample.num_padding;
}

}  // namespace

std::pair<int64_t, int64_t> MicroBatchRange(const LoaderOptions& options, int64_t micro_batch) {
  int64_t samples = options.global_batch_size / options.num_micro_batches;
  int64_t own = samples / options.num_data_parts;
  int64_t first = micro_batch * samples + options.data_part * own;
  return {first, first + own};
}

Loader::Loader(const LoaderOptions& options, Blend blend)
    : options_(options), blend_(std::move(blend)) {}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(std::vector<WeightedDataset> datasets,
                                                       const LoaderOptions& options) {
  MF_RETURN_IF_ERROR(CheckOptions(options));
  std::vector<double> weights;
  for (const WeightedDataset& entry : datasets) weights.push_back(entry.weight);
  MF_ASSIGN_OR_RETURN(Blend blend, Blend::Create(weights));
  std::unique_ptr<Loader> loader(new Loader(options, std::move(blend)));
  for (WeightedDataset& entry : datasets) {
    MF_RETURN_IF_ERROR(loader->AddSource(std::move(entry.dataset)));
  }
  loader->fingerprint_ = loader->ComputeFingerprint();
  return loader;
}

absl::Status Loader::AddSource(std::shared_ptr<const Dataset> dataset) {
  MF_CHECK(dataset != nullptr) << " no dataset";
  Source source;
  MF_ASSIGN_OR_RETURN(source.split,
                      SplitDataset(*dataset, {.validation_fraction = options_.validation_fraction,
                                              .by = options_.split_by,
                                              .block_length = options_.packing.seq_length,
                                              .seed = options_.seed}));
  source.dataset = std::move(dataset);
  sources_.push_back(std::move(source));
  int number = static_cast<int>(sources_.size()) - 1;
  const SampleIndex& first_epoch = EpochIndex(number, 0);
  Source& added = sources_.back();
  added.samples_per_epoch = first_epoch.num_samples();
  added.dropped_tokens = first_epoch.num_dropped_tokens();
  added.validation =
      BuildSampleIndex(added.split.validation, options_.packing, {.keep_tail = true});
  num_validation_samples_ += added.validation->num_samples();
  auto too_small = [&](absl::string_view what, const std::vector<DocumentSpan>& spans) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Loader] '", added.dataset->name(), "' has too little ", what,
                     " data: ", NumTokens(spans), " tokens in ", spans.size(),
                     " documents make no sample of sequence length ", options_.packing.seq_length));
  };
  if (added.samples_per_epoch == 0) return too_small("training", added.split.train);
  if (options_.validation_fraction > 0 && added.validation->num_samples() == 0) {
    return too_small("validation", added.split.validation);
  }
  return absl::OkStatus();
}

absl::StatusOr<GlobalBatch> Loader::Next() {
  MF_ASSIGN_OR_RETURN(GlobalBatch batch, TrainBatch(consumed_samples_));
  consumed_samples_ += options_.global_batch_size;
  return batch;
}

absl::StatusOr<GlobalBatch> Loader::TrainBatch(int64_t first_sample) {
  return MakeBatch(first_sample, options_.global_batch_size, /*train=*/true);
}

int64_t Loader::num_validation_batches() const {
  return (num_validation_samples_ + options_.global_batch_size - 1) / options_.global_batch_size;
}

absl::StatusOr<GlobalBatch> Loader::ValidationBatch(int64_t i) {
  if (i < 0 || i >= num_validation_batches()) {
    return absl::OutOfRangeError(absl::StrCat("[Loader] validation batch ", i, " out of range [0, ",
                                              num_validation_batches(), ")"));
  }
  int64_t first = i * options_.global_batch_size;
  int64_t count = std::min(options_.global_batch_size, num_validation_samples_ - first);
  return MakeBatch(first, count, /*train=*/false);
}

absl::StatusOr<GlobalBatch> Loader::MakeBatch(int64_t first_sample, int64_t num_samples,
                                              bool train) {
  GlobalBatch batch;
  batch.first_sample = first_sample;
  batch.num_samples = num_samples;
  for (int64_t m = 0; m < options_.num_micro_batches; ++m) {
    MicroBatch micro_batch;
    micro_batch.cu_seqlens.push_back(0);
    auto [begin, end] = MicroBatchRange(options_, m);
    for (int64_t i = begin; i < end; ++i) {
      PackedSample sample;
      if (i < num_samples) {
        SampleId id = train ? IdOf(first_sample + i) : ValidationIdOf(first_sample + i);
        MF_ASSIGN_OR_RETURN(sample, train ? TrainSample(id) : ValidationSample(id));
        micro_batch.sample_ids.push_back(id);
      } else {
        const Source& any = sources_[0];
        MF_ASSIGN_OR_RETURN(sample, PackSample(*any.dataset, any.split.validation, {},
                                               options_.packing, options_.vocab_size));
      }
      AppendSample(sample, micro_batch);
    }
    batch.num_valid += micro_batch.num_valid;
    batch.micro_batches.push_back(std::move(micro_batch));
  }
  return batch;
}

absl::Status Loader::Restore(const LoaderState& state) {
  if (state.consumed_samples < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Loader] cannot resume after ", state.consumed_samples, " samples"));
  }
  if (state.fingerprint != 0 && state.fingerprint != fingerprint_) {
    return absl::FailedPreconditionError(
        absl::StrCat("[Loader] cannot resume after ", state.consumed_samples,
                     " samples: datasets, weights, seed, split, sequence length or packing differ "
                     "from the saved run (fingerprints ",
                     absl::Hex(state.fingerprint), " and ", absl::Hex(fingerprint_), ")"));
  }
  consumed_samples_ = state.consumed_samples;
  return absl::OkStatus();
}

SampleId Loader::IdOf(int64_t k) {
  BlendedSample blended = blend_.At(k);
  int64_t count = sources_[blended.dataset].samples_per_epoch;
  SampleId id = {blended.dataset, blended.sample / count, blended.sample % count};
  if (options_.shuffle) {
    RngKey key = MakeRngKey(options_.seed, absl::StrCat("shuffle/epoch/", id.epoch));
    id.index = static_cast<int64_t>(PermuteIndex(FoldIn(key, 2 * id.dataset + 1), id.index, count));
  }
  return id;
}

SampleId Loader::ValidationIdOf(int64_t k) const {
  int dataset = 0;
  for (; k >= sources_[dataset].validation->num_samples(); ++dataset) {
    k -= sources_[dataset].validation->num_samples();
  }
  return {dataset, 0, k};
}

PassOptions Loader::PassOf(int dataset, int64_t epoch) const {
  if (!options_.shuffle) return {};
  RngKey key = MakeRngKey(options_.seed, absl::StrCat("shuffle/epoch/", epoch));
  return {.shuffle = FoldIn(key, 2 * dataset)};
}

const SampleIndex& Loader::EpochIndex(int dataset, int64_t epoch) {
  Source& source = sources_[dataset];
  auto it = source.epochs.find(epoch);
  if (it != source.epochs.end()) return *it->second;
  // A batch may reach over a border, so the epoch before stays; a jump drops both.
  for (auto old = source.epochs.begin(); old != source.epochs.end();) {
    old = old->first == epoch - 1 ? std::next(old) : source.epochs.erase(old);
  }
  std::unique_ptr<SampleIndex> index =
      BuildSampleIndex(source.split.train, options_.packing, PassOf(dataset, epoch));
  if (epoch > 0) MF_CHECK_EQ(index->num_samples(), source.samples_per_epoch);
  return *source.epochs.emplace(epoch, std::move(index)).first->second;
}

absl::StatusOr<PackedSample> Loader::TrainSample(const SampleId& id) {
  const SampleIndex& index = EpochIndex(id.dataset, id.epoch);
  const Source& source = sources_[id.dataset];
  return PackSample(*source.dataset, source.split.train, index.Segments(id.index), options_.packing,
                    options_.vocab_size);
}

absl::StatusOr<PackedSample> Loader::ValidationSample(const SampleId& id) {
  const Source& source = sources_[id.dataset];
  return PackSample(*source.dataset, source.split.validation, source.validation->Segments(id.index),
                    options_.packing, options_.vocab_size);
}

uint64_t Loader::ComputeFingerprint() const {
  RngKey key = MakeRngKey(options_.seed, "loader");
  auto fold = [&key](auto value) {
    uint64_t bits = 0;
    static_assert(sizeof(value) <= sizeof(bits));
    std::memcpy(&bits, &value, sizeof(value));
    key = FoldIn(key, bits);
  };
  fold(options_.packing.seq_length);
  fold(options_.packing.mode);
  fold(options_.packing.document_mask);
  fold(options_.shuffle);
  fold(options_.validation_fraction);
  fold(options_.split_by);
  for (size_t i = 0; i < sources_.size(); ++i) {
    fold(blend_.weights()[i]);
    fold(sources_[i].split.train.size());
    fold(NumTokens(sources_[i].split.train));
    fold(NumTokens(sources_[i].split.validation));
  }
  // Fits a signed integer too, as checkpoints store it, and is not the 0 of "do not compare".
  return std::max<uint64_t>(key.value & INT64_MAX, 1);
}

std::string Loader::Summary() const {
  std::string text;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    absl::StrAppend(&text, "dataset ", i, " '", source.dataset->name(), "' (weight ",
                    blend_.weights()[i], "): train ", source.split.train.size(), " documents, ",
                    NumTokens(source.split.train), " tokens, ", source.samples_per_epoch,
                    " samples an epoch, ", source.dropped_tokens,
                    " tokens left over an epoch; validation ", source.split.validation.size(),
                    " documents, ", NumTokens(source.split.validation), " tokens, ",
                    source.validation->num_samples(), " samples\n");
  }
  return text;
}

}  // namespace meshfold
