// Trainer: one rank of a training run. Owns runtime, model, optimizer and loader.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/data/loader.h"
#include "optim/optimizer.h"
#include "parallel/axis.h"
#include "parallel/grad_bucket.h"
#include "parallel/grad_norm.h"
#include "parallel/stage.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/runtime.h"
#include "train/setup.h"
#include "train/world.h"

namespace meshfold::train {

// Where a run begins: "auto" (the newest checkpoint of run.dir, else anew), "none", or a directory:
// a checkpoint, or a run or checkpoints directory (its newest).
struct ResumeOptions {
  std::string from = "auto";
};

// Single-threaded from outside; its methods enter the runtime's context themselves. Errors are
// Status with one sentence; after an error in Step the run cannot go on.
//
// Every rank of a world has a trainer and calls the same methods in the same order: all but
// accessors are collective. Each trains on its data part of every micro-batch; what StepMetrics and
// ValidationResult say is of the whole batch, apart from times, memory and mfu. Rank 0 alone writes
// files. A rank whose method fails must abort the world, or the others wait for it until their
// deadline.
class Trainer {
 public:
  // Validates the config, builds everything, and restores a checkpoint as `resume` says. `logger`
  // must outlive the trainer. Writes nothing. Unimplemented where the config asks for another axis
  // than data parallelism.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Config& config,
                                                         const ResumeOptions& resume,
                                                         Logger& logger,
                                                         const World& world = SoloWorld());
  ~Trainer();

  // One optimizer step on the loader's next batch, or on a batch of the caller's (sizes are the
  // caller's; num_valid is counted here).
  absl::StatusOr<StepMetrics> Step();
  absl::StatusOr<StepMetrics> Step(const GlobalBatch& batch);

  // Steps until config.train.steps, writing run.dir: config.yaml, metrics.jsonl, log.txt,
  // checkpoints; validates and saves when due, and at the end.
  absl::Status Run();

  // Loss over the whole validation split, or over at most `max_batches` batches of it (0: all).
  absl::StatusOr<ValidationResult> Validate(int64_t max_batches);

  // Saves weights, moments, step and loader position into run.dir/checkpoints; returns the path.
  absl::StatusOr<std::string> Save();
  // Restores all of it from a checkpoint directory. One of weights alone (a converted model) starts
  // at step 0 with a fresh optimizer, from the first sample.
  absl::Status Load(const std::string& directory);

  int64_t step() const { return optimizer_->num_steps(); }
  const Config& config() const { return config_; }
  BuiltModel& model() { return model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  Runtime& runtime() { return *runtime_; }
  const parallel::Meshes& meshes() const { return *meshes_; }
  Loader* loader() { return loader_.get(); }
  const std::string& last_checkpoint() const { return last_checkpoint_; }

 private:
  Trainer(const Config& config, Logger& logger, const World& world)
      : config_(config), logger_(logger), world_(world) {}
  absl::Status Build();
  // What the ranks of a step exchange after the layers are there.
  absl::Status ReduceGradients();
  absl::Status Restore(const ResumeOptions& resume);
  absl::StatusOr<StepMetrics> RunStep(const GlobalBatch& batch);
  absl::Status ForwardBackward(const GlobalBatch& batch, StepMetrics& metrics);
  absl::Status ValidateInto(MetricsWriter* writer);
  // Weights may fit a model that computes something else: other rope, another top_k.
  void WarnOfDifferences(const std::string& saved_yaml);
  // Over micro-batches and ranks.
  void SumLossesAndLoads(int64_t num_micro_batches, StepMetrics& metrics);
  bool IsWriter() const { return world_.communicator->rank() == 0; }
  // Ranks with different tokens; tensor-parallel neighbours have the same ones.
  comm::Communicator& data_group() const { return *meshes_->dense.group("dp").communicator; }
  // Returns once every rank is here.
  absl::Status Meet();

  Config config_;
  Logger& logger_;
  World world_;
  std::optional<parallel::Meshes> meshes_;  // set by Build
  std::unique_ptr<Runtime> runtime_;        // before all that holds its memory
  std::unique_ptr<Loader> loader_;          // null: the caller brings batches
  BuiltModel model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::vector<Parameter*> parameters_;
  std::vector<Parameter*> norm_parts_;
  std::unique_ptr<parallel::GradBuckets> buckets_;  // null before Build
  std::unique_ptr<parallel::Stage> stage_;
  std::vector<std::unique_ptr<StepContext>> contexts_;  // of the step in progress
  double gemm_rate_ = 0.0;                              // FLOP/s, 0: not measured
  std::string last_checkpoint_;
};

}  // namespace meshfold::train
