// Training steps of two fixed shapes on random tokens, alternated with other programs by
// tools/bench_torch.py: one side of `./run bench torch`. It reads commands from standard input:
// "step N" trains N steps and answers with a line of JSON, "quit" ends.
//
// Usage: training_bench M|S THREADS
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"
#include "core/nn/init.h"
#include "models/decoder.h"
#include "nlohmann/json.hpp"
#include "optim/optimizer.h"
#include "parallel/grad_norm.h"
#include "parallel/stage.h"
#include "train/flops.h"
#include "train/runtime.h"

namespace meshfold {
namespace {

using train::Runtime;

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BenchShape {
  models::ModelConfig model;
  int64_t batch = 0, sequence = 0;
};

// Qwen3-MoE, untied, f32: the shapes of docs/benchmarks.md.
absl::StatusOr<BenchShape> ShapeOf(const std::string& name) {
  BenchShape shape;
  models::ModelConfig& model = shape.model;
  model.qk_norm = models::QkNorm::kPerHead;
  model.rope.theta = 1e6;
  model.num_layers = 4;
  model.head_dim = 64;
  if (name == "M") {
    model.vocab_size = 8192;
    model.hidden_size = model.moe.expert_size = 512;
    model.num_heads = 8;
    model.num_kv_heads = 4;
    model.moe.num_experts = 32;
    model.moe.top_k = 4;
    shape.batch = 4;
    shape.sequence = 512;
    return shape;
  }
  if (name == "S") {
    model.vocab_size = 256;
    model.hidden_size = model.moe.expert_size = 256;
    model.num_heads = 4;
    model.num_kv_heads = 2;
    model.moe.num_experts = 16;
    model.moe.top_k = 2;
    shape.batch = 8;
    shape.sequence = 128;
    return shape;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown shape '", name, "'; known: M, S"));
}

PackedBatch RandomBatch(const BenchShape& shape) {
  RngKey key = MakeRngKey(1, "bench");
  std::vector<int32_t> tokens, targets, cu_seqlens = {0};
  for (int64_t i = 0; i < shape.batch * shape.sequence; ++i) {
    tokens.push_back(static_cast<int32_t>(UniformIntAt(
        key, static_cast<uint64_t>(i), static_cast<uint64_t>(shape.model.vocab_size))));
  }
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t s = 0; s < shape.sequence; ++s) {
      int64_t next = b * shape.sequence + s + 1;
      targets.push_back(s + 1 < shape.sequence ? tokens[static_cast<size_t>(next)] : -100);
    }
    cu_seqlens.push_back(static_cast<int32_t>((b + 1) * shape.sequence));
  }
  return MakePackedBatch(tokens, targets, cu_seqlens);
}

// The model, its optimizer and its one batch.
class BenchRun {
 public:
  static absl::StatusOr<std::unique_ptr<BenchRun>> Create(const std::string& shape, int threads) {
    std::unique_ptr<BenchRun> run(new BenchRun);
    MF_ASSIGN_OR_RETURN(run->shape_, ShapeOf(shape));
    MF_ASSIGN_OR_RETURN(run->runtime_, Runtime::Create({.threads = threads}));
    ScopedExecContext scope(run->runtime_->context());
    MF_ASSIGN_OR_RETURN(run->layers_, models::BuildDecoder(run->shape_.model));
    Initialize(*run->layers_, 1);
    run->parameters_ = ParametersOf(*run->layers_);
    MF_ASSIGN_OR_RETURN(run->optimizer_,
                        optim::Optimizer::Create({.weight_decay = 0.1}, run->parameters_));
    run->stage_ = std::make_unique<parallel::Stage>(*run->layers_);
    run->batch_ = RandomBatch(run->shape_);
    return run;
  }

  int64_t tokens() const { return batch_.num_tokens(); }
  double flops() const { return train::TrainingFlops(shape_.model, batch_.cu_seqlens); }
  Runtime& runtime() { return *runtime_; }

  // Forward, backward, clip, AdamW; the loss.
  absl::StatusOr<double> Step() {
    ScopedExecContext scope(runtime_->context());
    StepContext::Options options;
    options.loss_scale = 1.0 / static_cast<double>(shape_.batch * (shape_.sequence - 1));
    StepContext context(batch_, options);
    stage_->BeginStep(1);
    MF_RETURN_IF_ERROR(stage_->Forward(0, context));
    MF_RETURN_IF_ERROR(stage_->Backward(0));
    float loss = 0.0f;
    MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
      double norm = parallel::GradNorm(parameters_);
      optimizer_->Step(1e-4, parallel::ClipScale(norm, 1.0));
      AwaitOnHost(*CurrentBackend().CopyToHost(stage_->loss(0), &loss));
    }));
    return loss;
  }

 private:
  BenchRun() = default;
  BenchShape shape_;
  std::unique_ptr<Runtime> runtime_;  // outlives what follows
  std::unique_ptr<LayerStack> layers_;
  std::vector<Parameter*> parameters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<parallel::Stage> stage_;
  PackedBatch batch_;
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
                         {"device_live_bytes", run.runtime().allocator().stats().live_bytes},
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
