#include "train/trainer.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "comm/stats.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/data/statistics.h"
#include "core/io/file.h"
#include "moe/balance.h"
#include "optim/lr_schedule.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_dir.h"
#include "parallel/rank_sum.h"
#include "parallel/reduction_groups.h"
#include "parallel/train_state.h"
#include "train/checkpoint_path.h"
#include "train/flops.h"
#include "train/monitor.h"

namespace meshfold::train {
namespace {

// Enough for frequencies to two digits of entropy, read in a fraction of a second.
constexpr int64_t kUnigramTokens = int64_t{1} << 20;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

optim::OptimizerOptions OptimizerOf(const Config& config) {
  optim::OptimizerOptions options;
  options.rule = config.optimizer.name;
  options.rule_options = {.beta1 = config.optimizer.beta1,
                          .beta2 = config.optimizer.beta2,
                          .eps = config.optimizer.eps,
                          .momentum = config.optimizer.momentum};
  options.weight_decay = config.optimizer.weight_decay;
  options.master_weights = config.optimizer.master_weights;
  return options;
}

optim::ScheduleConfig ScheduleOf(const Config& config) {
  optim::ScheduleConfig schedule;
  schedule.name = config.schedule.name;
  schedule.peak_lr = config.optimizer.lr;
  schedule.total_steps = config.train.steps;
  schedule.warmup_steps = config.schedule.warmup_steps;
  schedule.decay_steps = config.schedule.decay_steps;
  schedule.min_lr_ratio = config.schedule.min_lr_ratio;
  return schedule;
}

// Counted over the whole step: targets for the loss's divisor, positions without padding.
struct BatchCounts {
  int64_t valid = 0, tokens = 0;
};

int64_t TokensOf(const MicroBatch& micro_batch) {
  return static_cast<int64_t>(micro_batch.tokens.size()) - micro_batch.num_padding;
}

BatchCounts CountBatch(const GlobalBatch& batch) {
  BatchCounts counts;
  for (const MicroBatch& micro_batch : batch.micro_batches) {
    for (int32_t target : micro_batch.targets) counts.valid += target >= 0 ? 1 : 0;
    counts.tokens += TokensOf(micro_batch);
  }
  return counts;
}

absl::StatusOr<BatchCounts> CountOverRanks(comm::Communicator& group, const BatchCounts& own) {
  MF_ASSIGN_OR_RETURN(const std::vector<double> sums,
                      parallel::SumOverRanks(group, {static_cast<double>(own.valid),
                                                     static_cast<double>(own.tokens)}));
  return BatchCounts{static_cast<int64_t>(sums[0]), static_cast<int64_t>(sums[1])};
}

StepContext::Options OptionsOf(const MicroBatch& micro_batch, const BatchCounts& counts,
                               bool training) {
  StepContext::Options options;
  options.training = training;
  // A batch without a counted target has loss 0 and gradient 0.
  options.loss_scale = counts.valid > 0 ? 1.0 / static_cast<double>(counts.valid) : 0.0;
  options.token_weight = counts.tokens > 0 ? static_cast<double>(TokensOf(micro_batch)) /
                                                 static_cast<double>(counts.tokens)
                                           : 0.0;
  return options;
}

PackedBatch ToPackedBatch(const MicroBatch& micro_batch) {
  return MakePackedBatch(micro_batch.tokens, micro_batch.targets, micro_batch.cu_seqlens,
                         micro_batch.is_padding);
}

double ReadScalar(const Tensor& scalar) {
  float value;
  AwaitOnHost(*CurrentBackend().CopyToHost(scalar, &value));
  return value;
}

// This rank's traffic of a step. Groups without any (of one rank) are left out.
void AddTraffic(const comm::TrafficSnapshot& traffic, StepMetrics& metrics) {
  for (const auto& [key, count] : traffic) {
    metrics.comm_seconds += absl::ToDoubleSeconds(count.in_flight);
    metrics.exposed_comm_seconds += absl::ToDoubleSeconds(count.exposed);
    if (count.sent_bytes > 0) metrics.comm_bytes[key.group] += count.sent_bytes;
  }
  metrics.compute_seconds = metrics.step_seconds - metrics.exposed_comm_seconds;
}

// Better now than hours later, at the first checkpoint.
absl::Status CheckWritable(const std::string& directory) {
  MF_RETURN_IF_ERROR(MakeDirs(directory));
  return DurableFileWriter::Create(JoinPath(directory, "latest")).status();  // not closed: no file
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Config& config,
                                                         const ResumeOptions& resume,
                                                         Logger& logger, const World& world) {
  std::unique_ptr<Trainer> trainer(new Trainer(config, logger, world));
  MF_RETURN_IF_ERROR(trainer->Build());
  MF_RETURN_IF_ERROR(trainer->Restore(resume));
  return trainer;
}

Trainer::~Trainer() = default;

absl::Status Trainer::Build() {
  MF_ASSIGN_OR_RETURN(const parallel::RankLayout layout,
                      LayoutOf(config_, world_.communicator->size()));
  MF_RETURN_IF_ERROR(CheckKnownAxes(config_));
  MF_ASSIGN_OR_RETURN(meshes_, parallel::Meshes::Create(world_.communicator, layout));
  MF_ASSIGN_OR_RETURN(runtime_, Runtime::Create(RuntimeOf(config_, world_.ranks_on_node)));
  ScopedExecContext scope(runtime_->context());
  MF_RETURN_IF_ERROR(optim::Validate(ScheduleOf(config_)));
  MF_ASSIGN_OR_RETURN(std::vector<WeightedDataset> datasets, OpenDatasets(config_));
  MF_ASSIGN_OR_RETURN(model_, BuildModel(config_, VocabSizeOf(datasets), &*meshes_));
  if (!datasets.empty() && config_.data.sequence_length > model_.config.max_position) {
    // As Validate says where the config describes the model itself.
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length ", config_.data.sequence_length, " is above the ",
                     model_.config.max_position, " positions of the model in ", config_.model.hf));
  }
  MF_ASSIGN_OR_RETURN(loader_, BuildLoader(config_, std::move(datasets), model_.config.vocab_size,
                                           data_group().rank(), data_group().size()));
  const models::MoeConfig& moe = model_.config.moe;
  if (moe.num_experts > 1 && moe.top_k == 1 && moe.renormalize) {
    logger_.Warning(
        "moe.top_k 1 with moe.renormalize gives every token's expert the weight 1: the loss "
        "teaches the router nothing, auxiliary losses alone do");
  }
  parameters_ = ParametersOf(*model_.layers);
  MF_ASSIGN_OR_RETURN(optimizer_, optim::Optimizer::Create(OptimizerOf(config_), parameters_));
  stage_ = std::make_unique<parallel::Stage>(*model_.layers);
  return ReduceGradients();
}

absl::Status Trainer::ReduceGradients() {
  MF_ASSIGN_OR_RETURN(norm_parts_,
                      parallel::PartsForNorm(parameters_, meshes_->ranks, meshes_->rank()));
  MF_ASSIGN_OR_RETURN(const std::vector<parallel::GradBuckets::Group> groups,
                      parallel::MakeReductionGroups(parameters_, *meshes_));
  return parallel::CatchStatus([&] {
    buckets_ =
        std::make_unique<parallel::GradBuckets>(parameters_, groups, parallel::GradBucketOptions());
  });
}

absl::Status Trainer::Meet() {
  return comm::WaitFor(world_.communicator->Barrier(), *world_.communicator);
}

absl::Status Trainer::Restore(const ResumeOptions& resume) {
  if (resume.from == "none") return absl::OkStatus();
  if (resume.from != "auto") {
    MF_ASSIGN_OR_RETURN(std::string directory, ResolveCheckpoint(resume.from));
    return Load(directory);
  }
  absl::StatusOr<std::string> latest = parallel::LatestCheckpoint(CheckpointRoot(config_));
  if (absl::IsNotFound(latest.status())) return absl::OkStatus();
  MF_RETURN_IF_ERROR(latest.status());
  return Load(*latest);
}

absl::StatusOr<StepMetrics> Trainer::Step() {
  if (loader_ == nullptr) {
    return absl::FailedPreconditionError("[Step] the config has no data source: pass a batch");
  }
  MF_ASSIGN_OR_RETURN(GlobalBatch batch, loader_->Next());
  return RunStep(batch);
}

absl::StatusOr<StepMetrics> Trainer::Step(const GlobalBatch& batch) { return RunStep(batch); }

absl::StatusOr<StepMetrics> Trainer::RunStep(const GlobalBatch& batch) {
  ScopedExecContext scope(runtime_->context());
  Clock::time_point start = Clock::now();
  runtime_->allocator().ResetPeak();
  world_.communicator->stats()->TakeSnapshot();  // of what came between steps
  StepMetrics metrics;
  metrics.step = step() + 1;
  metrics.lr = optim::LearningRate(ScheduleOf(config_), step());
  MF_RETURN_IF_ERROR(ForwardBackward(batch, metrics));
  MF_RETURN_IF_ERROR(buckets_->Finish());
  MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
    metrics.grad_norm = parallel::GradNorm(norm_parts_, *world_.communicator);
    if (!std::isfinite(metrics.grad_norm) || !std::isfinite(metrics.loss)) {
      throw StatusError(absl::InternalError(
          absl::StrFormat("[Step] step %d: loss %g, gradient norm %g; training cannot go on",
                          metrics.step, metrics.loss, metrics.grad_norm)));
    }
    optimizer_->Step(metrics.lr,
                     parallel::ClipScale(metrics.grad_norm, config_.optimizer.clip_norm));
    model_.layers->OnStepEnd(contexts_);
  }));
  contexts_.clear();
  metrics.step_seconds = SecondsSince(start);
  AddTraffic(world_.communicator->stats()->TakeSnapshot(), metrics);
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.step_seconds;
  metrics.memory_peak_bytes = runtime_->allocator().stats().peak_live_bytes;
  if (gemm_rate_ > 0.0) {
    double flops = 0.0;
    for (const MicroBatch& m : batch.micro_batches) {
      flops += TrainingFlops(model_.config, m.cu_seqlens, m.is_padding);
    }
    metrics.mfu = flops / metrics.step_seconds / gemm_rate_;
  }
  return metrics;
}

absl::Status Trainer::ForwardBackward(const GlobalBatch& batch, StepMetrics& metrics) {
  MF_ASSIGN_OR_RETURN(const BatchCounts counts, CountOverRanks(data_group(), CountBatch(batch)));
  metrics.tokens = counts.tokens;
  int64_t num_micro_batches = static_cast<int64_t>(batch.micro_batches.size());
  stage_->BeginStep(num_micro_batches);
  buckets_->BeginStep();
  contexts_.clear();
  return parallel::CatchStatus([&] {
    for (int64_t m = 0; m < num_micro_batches; ++m) {
      const MicroBatch& micro_batch = batch.micro_batches[static_cast<size_t>(m)];
      contexts_.push_back(std::make_unique<StepContext>(ToPackedBatch(micro_batch),
                                                        OptionsOf(micro_batch, counts, true)));
      ThrowIfError(stage_->Forward(m, *contexts_.back()));
      ThrowIfError(stage_->Backward(m));
    }
    SumLossesAndLoads(num_micro_batches, metrics);
  });
}

void Trainer::SumLossesAndLoads(int64_t num_micro_batches, StepMetrics& metrics) {
  double lm_loss = 0.0, aux_loss = 0.0, z_loss = 0.0, dropped = 0.0;
  for (int64_t m = 0; m < num_micro_batches; ++m) lm_loss += ReadScalar(stage_->loss(m));
  std::map<std::string, std::vector<double>> load_by_layer;  // rows of each expert
  for (const auto& context : contexts_) {
    for (const StepContext::AttachedLoss& attached : context->attached_losses()) {
      (attached.name == "z_loss" ? z_loss : aux_loss) += ReadScalar(attached.value);
    }
    for (const ExpertCounts& counts : context->expert_counts()) {
      std::vector<int32_t> routed(static_cast<size_t>(counts.routed.numel())), kept = routed;
      AwaitOnHost(*CurrentBackend().CopyToHost(counts.routed, routed.data()));
      AwaitOnHost(*CurrentBackend().CopyToHost(counts.kept, kept.data()));
      std::vector<double>& load = load_by_layer[counts.layer];
      load.resize(routed.size());
      for (size_t e = 0; e < load.size(); ++e) {
        load[e] += routed[e];
        dropped += routed[e] - kept[e];
      }
    }
  }
  // Tensor-parallel neighbours have the same loss; of auxiliary losses and loads each has its own
  // tokens' part.
  if (meshes_->dense.group("tp").rank() > 0) lm_loss = 0.0;
  // One exchange for everything; layers and their experts are the same on every rank.
  std::vector<double> values = {lm_loss, aux_loss, z_loss, dropped};
  for (const auto& [layer, load] : load_by_layer) {
    values.insert(values.end(), load.begin(), load.end());
  }
  values =
      ValueOrThrow(parallel::SumOverRanks(*meshes_->dense.group("dp_tp").communicator, values));
  metrics.lm_loss = values[0];
  metrics.aux_loss = values[1];
  metrics.z_loss = values[2];
  metrics.dropped_tokens = static_cast<int64_t>(values[3]);
  metrics.loss = metrics.lm_loss + metrics.aux_loss + metrics.z_loss;
  // The mean over layers of each statistic.
  auto at = values.begin() + 4;
  for (const auto& [layer, own_load] : load_by_layer) {
    std::vector<int64_t> load;
    for (size_t e = 0; e < own_load.size(); ++e) load.push_back(static_cast<int64_t>(*at++));
    const moe::LoadStatistics statistics = moe::StatisticsOf(load);
    const double weight = 1.0 / static_cast<double>(load_by_layer.size());
    metrics.has_experts = true;
    metrics.load_max_over_mean += weight * statistics.max_over_mean;
    metrics.load_min += weight * statistics.min;
    metrics.load_p50 += weight * statistics.p50;
    metrics.load_p95 += weight * statistics.p95;
  }
}

absl::StatusOr<ValidationResult> Trainer::Validate(int64_t max_batches) {
  if (loader_ == nullptr || loader_->num_validation_batches() == 0) {
    return absl::FailedPreconditionError(
        "[Validate] no validation data: set data.validation_fraction above 0");
  }
  ScopedExecContext scope(runtime_->context());
  int64_t num_batches = loader_->num_validation_batches();
  if (max_batches > 0) num_batches = std::min(num_batches, max_batches);
  ValidationResult result;
  double sum = 0.0;
  for (int64_t i = 0; i < num_batches; ++i) {
    MF_ASSIGN_OR_RETURN(GlobalBatch batch, loader_->ValidationBatch(i));
    result.samples += batch.num_samples;
    for (const MicroBatch& micro_batch : batch.micro_batches) {
      StepContext::Options options;
      options.training = false;
      result.tokens += micro_batch.num_valid;
      MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
        ScopedGradMode no_grad(GradMode::kNoGrad);
        StepContext context(ToPackedBatch(micro_batch), options);
        Variable loss = (*model_.layers)(Variable(), context);
        sum += ReadScalar(loss.data());
      }));
    }
  }
  MF_ASSIGN_OR_RETURN(
      const std::vector<double> sums,
      parallel::SumOverRanks(data_group(), {sum, static_cast<double>(result.tokens)}));
  sum = sums[0];
  result.tokens = static_cast<int64_t>(sums[1]);
  result.loss = result.tokens > 0 ? sum / static_cast<double>(result.tokens) : 0.0;
  return result;
}

absl::StatusOr<std::string> Trainer::Save() {
  ScopedExecContext scope(runtime_->context());
  parallel::CheckpointState state;
  state.step = step();
  state.config_yaml = ResolvedYaml(WithModel(config_, model_.config));
  if (loader_ != nullptr) {
    LoaderState loader = loader_->state();
    state.integers["loader.consumed_samples"] = loader.consumed_samples;
    state.integers["loader.fingerprint"] = static_cast<int64_t>(loader.fingerprint);
  }
  const parallel::ShardingContext sharding{*world_.communicator, meshes_->ranks};
  MF_ASSIGN_OR_RETURN(
      last_checkpoint_,
      parallel::SaveTrainingState(CheckpointRoot(config_), *model_.layers, optimizer_.get(), state,
                                  {.keep = config_.checkpoint.keep}, &sharding));
  return last_checkpoint_;
}

void Trainer::WarnOfDifferences(const std::string& saved_yaml) {
  const absl::StatusOr<Config> saved = ParseConfig(saved_yaml, "config.yaml of the checkpoint");
  if (!saved.ok()) return;  // another version's: its weights fitted, the rest is unknown
  const std::vector<std::string> differences =
      ModelDifferences(WithModel(config_, model_.config), *saved);
  if (differences.empty()) return;
  logger_.Warning(
      absl::StrCat("the model differs from the one that the checkpoint was trained as: ",
                   absl::StrJoin(differences, ", ")));
}

absl::Status Trainer::Load(const std::string& directory) {
  ScopedExecContext scope(runtime_->context());
  MF_ASSIGN_OR_RETURN(parallel::CheckpointState state,
                      parallel::LoadTrainingState(directory, *model_.layers, optimizer_.get()));
  if (loader_ != nullptr) {
    LoaderState loader;
    loader.consumed_samples = state.integers["loader.consumed_samples"];
    loader.fingerprint = static_cast<uint64_t>(state.integers["loader.fingerprint"]);
    MF_RETURN_IF_ERROR(loader_->Restore(loader));
  }
  last_checkpoint_ = directory;
  WarnOfDifferences(state.config_yaml);
  logger_.Info(step() == 0 ? absl::StrCat("starting at step 0 from the weights of ", directory,
                                          ", with a fresh optimizer")
                           : absl::StrCat("resumed from ", directory, " at step ", step()));
  return absl::OkStatus();
}

absl::Status Trainer::Run() {
  if (loader_ == nullptr) {
    return absl::InvalidArgumentError(
        "data.source is empty: name a corpus, or \"python:stdlib\" for a first try");
  }
  std::unique_ptr<MetricsWriter> writer;  // null on other ranks than the writer
  if (IsWriter()) {
    MF_RETURN_IF_ERROR(MakeDirs(config_.run.dir));
    MF_RETURN_IF_ERROR(logger_.OpenFile(JoinPath(config_.run.dir, "log.txt")));
    MF_RETURN_IF_ERROR(WriteFile(JoinPath(config_.run.dir, "config.yaml"), ResolvedYaml(config_)));
    MF_RETURN_IF_ERROR(CheckWritable(CheckpointRoot(config_)));
    MF_ASSIGN_OR_RETURN(writer,
                        MetricsWriter::Open(JoinPath(config_.run.dir, "metrics.jsonl"), step()));
  }
  MF_RETURN_IF_ERROR(Meet());
  gemm_rate_ = runtime_->MeasureGemmRate();
  const int num_ranks = world_.communicator->size();
  if (num_ranks > 1) {
    logger_.Info(absl::StrFormat("%d ranks, %d on this machine: %s", num_ranks,
                                 world_.ranks_on_node, meshes_->ranks.dense.ToString()));
  }
  logger_.Info(absl::StrFormat("%d parameters, %d thread%s, GEMM rate %.1f GFLOP/s",
                               model_.num_parameters, runtime_->threads(),
                               runtime_->threads() == 1 ? "" : "s", gemm_rate_ * 1e-9));
  logger_.Info(absl::StripSuffix(loader_->Summary(), "\n"));
  if (step() == 0 && IsWriter()) {
    MF_ASSIGN_OR_RETURN(double unigram, UnigramEntropy(*loader_, kUnigramTokens));
    logger_.Info(
        absl::StrFormat("a model of token frequencies alone would reach loss %.4f", unigram));
  }
  ProgressLine progress(config_.monitor.progress, logger_, config_.train.log_interval);
  while (step() < config_.train.steps) {
    MF_ASSIGN_OR_RETURN(StepMetrics metrics, Step());
    if (IsWriter()) {
      progress.Update({.step = metrics.step,
                       .total_steps = config_.train.steps,
                       .loss = metrics.loss,
                       .tokens_per_second = metrics.tokens_per_second,
                       .mfu = metrics.mfu,
                       .step_seconds = metrics.step_seconds});
      MF_RETURN_IF_ERROR(writer->Write(metrics));
    }
    bool last = step() == config_.train.steps;
    int64_t eval_interval = config_.train.eval_interval;
    if (loader_->num_validation_batches() > 0 &&
        (last || (eval_interval > 0 && step() % eval_interval == 0))) {
      progress.Finish();
      MF_RETURN_IF_ERROR(ValidateInto(writer.get()));
    }
    int64_t save_interval = config_.checkpoint.interval;
    if (last || (save_interval > 0 && step() % save_interval == 0)) {
      progress.Finish();
      MF_RETURN_IF_ERROR(Save().status());
      logger_.Info(absl::StrCat("saved ", last_checkpoint_));
    }
  }
  return absl::OkStatus();
}

absl::Status Trainer::ValidateInto(MetricsWriter* writer) {
  MF_ASSIGN_OR_RETURN(ValidationResult result, Validate(config_.train.eval_batches));
  logger_.Info(absl::StrFormat("step %d  validation loss %.4f over %d tokens", step(), result.loss,
                               result.tokens));
  return writer == nullptr ? absl::OkStatus() : writer->Write(step(), result);
}

}  // namespace meshfold::train
