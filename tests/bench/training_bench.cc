// Training steps of two fixed shapes on random tokens, alternated with other programs by
// tools/bench_torch.py: one side of `./run bench torch`. It reads commands from standard input:
// "step N" trains N steps and answers with a line of JSON, "quit" ends.
//
// Usage: training_bench M|S THREADS
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"
#include "core/data/loader.h"
#include "nlohmann/json.hpp"
#include "train/config.h"
#include "train/flops.h"
#include "train/trainer.h"

namespace meshfold {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BenchShape {
  train::Config config;
  int64_t batch = 0, sequence = 0;
};

// Qwen3-MoE, untied, f32: the shapes of docs/benchmarks.md.
absl::StatusOr<BenchShape> ShapeOf(const std::string& name, int threads) {
  BenchShape shape;
  shape.config.runtime.threads = threads;
  shape.config.optimizer.lr = 1e-4;
  shape.config.schedule.name = "constant";
  train::ModelSection& model = shape.config.model;
  models::MoeConfig& moe = shape.config.moe.options;
  model.rope.theta = 1e6;
  model.head_dim = 64;
  if (name == "M") {
    model.vocab_size = 8192;
    model.hidden_size = moe.expert_size = 512;
    model.num_heads = 8;
    model.num_kv_heads = 4;
    moe.num_experts = 32;
    moe.top_k = 4;
    shape.batch = 4;
    shape.sequence = 512;
    return shape;
  }
  if (name == "S") {
    model.vocab_size = 256;
    model.hidden_size = moe.expert_size = 256;
    model.num_heads = 4;
    model.num_kv_heads = 2;
    moe.num_experts = 16;
    moe.top_k = 2;
    shape.batch = 8;
    shape.sequence = 128;
    return shape;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown shape '", name, "'; known: M, S"));
}

GlobalBatch RandomBatch(const BenchShape& shape) {
  const RngKey key = MakeRngKey(1, "bench");
  MicroBatch micro_batch;
  micro_batch.cu_seqlens = {0};
  for (int64_t i = 0; i < shape.batch * shape.sequence; ++i) {
    micro_batch.tokens.push_back(static_cast<int32_t>(UniformIntAt(
        key, static_cast<uint64_t>(i), static_cast<uint64_t>(shape.config.model.vocab_size))));
  }
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t s = 0; s < shape.sequence; ++s) {
      const int64_t next = b * shape.sequence + s + 1;
      micro_batch.targets.push_back(
          s + 1 < shape.sequence ? micro_batch.tokens[static_cast<size_t>(next)] : kIgnoredTarget);
    }
    micro_batch.cu_seqlens.push_back(static_cast<int32_t>((b + 1) * shape.sequence));
  }
  GlobalBatch batch;
  batch.micro_batches.push_back(std::move(micro_batch));
  return batch;
}

// A trainer and its one batch.
class BenchRun {
 public:
  static absl::StatusOr<std::unique_ptr<BenchRun>> Create(const std::string& name, int threads) {
    MF_ASSIGN_OR_RETURN(BenchShape shape, ShapeOf(name, threads));
    std::unique_ptr<BenchRun> run(new BenchRun);
    MF_ASSIGN_OR_RETURN(run->trainer_,
                        train::Trainer::Create(shape.config, {.from = "none"}, run->logger_));
    run->batch_ = RandomBatch(shape);
    return run;
  }

  int64_t tokens() const { return static_cast<int64_t>(batch_.micro_batches[0].tokens.size()); }
  double flops() const {
    return train::TrainingFlops(trainer_->model().config, batch_.micro_batches[0].cu_seqlens);
  }
  int64_t live_bytes() const { return trainer_->runtime().allocator().stats().live_bytes; }

  // Forward, backward, clip, AdamW; the loss.
  absl::StatusOr<double> Step() {
    MF_ASSIGN_OR_RETURN(train::StepMetrics metrics, trainer_->Step(batch_));
    return metrics.loss;
  }

 private:
  BenchRun() = default;
  Logger logger_;
  std::unique_ptr<train::Trainer> trainer_;
  GlobalBatch batch_;
};

// Runs `count` steps and prints one JSON line.
absl::Status TimeSteps(BenchRun& run, int64_t count) {
  std::vector<double> seconds;
  double loss = 0.0, total = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    Clock::time_point start = Clock::now();
    MF_ASSIGN_OR_RETURN(loss, run.Step());
    seconds.push_back(SecondsSince(start));
    total += seconds.back();
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  double steps = static_cast<double>(count);
  nlohmann::json line = {{"seconds_per_step", seconds},
                         {"tokens_per_second", static_cast<double>(run.tokens()) * steps / total},
                         {"gflops_per_second", run.flops() * steps / total * 1e-9},
                         {"peak_rss_bytes", static_cast<int64_t>(usage.ru_maxrss) * 1024},
                         {"device_live_bytes", run.live_bytes()},
                         {"loss", loss}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

absl::Status Serve(BenchRun& run) {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t count = 0;
    if (words.size() == 1 && words[0] == "quit") return absl::OkStatus();
    if (words.size() == 2 && words[0] == "step" && absl::SimpleAtoi(words[1], &count)) {
      MF_RETURN_IF_ERROR(TimeSteps(run, count));
    } else {
      return absl::InvalidArgumentError(absl::StrCat("'", line, "' is none of: step N, quit"));
    }
  }
  return absl::OkStatus();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  int threads = 0;
  if (arguments.size() != 2 || !absl::SimpleAtoi(arguments[1], &threads)) {
    return absl::InvalidArgumentError("usage: training_bench M|S THREADS");
  }
  MF_ASSIGN_OR_RETURN(std::unique_ptr<BenchRun> run, BenchRun::Create(arguments[0], threads));
  return Serve(*run);
}

}  // namespace
}  // namespace meshfold

int main(int argc, char** argv) {
  const absl::Status status = meshfold::Main({argv + 1, argv + argc});
  if (status.ok()) return 0;
  std::fprintf(stderr, "training_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
