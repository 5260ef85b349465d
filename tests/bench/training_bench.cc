// Training steps of two fixed shapes on random tokens, alternated with other programs by
// tools/bench_torch.py, bench_ranks.py and bench_network.py. It reads commands from standard input:
// "step N" trains N steps and answers with a line of JSON, "quit" ends. Under mpirun rank 0 reads
// and answers for all.
//
// Usage: [mpirun -n N] training_bench M|S THREADS [KEY=VALUE...], with keys of the config:
// parallel.expert=2; train.global_batch_size and data.sequence_length are the batch.
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
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "core/base/log.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"
#include "core/data/loader.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"
#include "nlohmann/json.hpp"
#include "parallel/rank_sum.h"
#include "train/commands/launched_world.h"
#include "train/config.h"
#include "train/flops.h"
#include "train/setup.h"
#include "train/trainer.h"
#include "train/world.h"

namespace meshfold {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Qwen3-MoE, untied, f32: the shapes of docs/benchmarks.md.
absl::StatusOr<train::Config> ShapeOf(const std::string& name) {
  train::Config config;
  config.optimizer.lr = 1e-4;
  config.schedule.name = "constant";
  train::ModelSection& model = config.model;
  models::MoeConfig& moe = config.moe.options;
  model.rope.theta = 1e6;
  model.head_dim = 64;
  if (name == "M") {
    model.vocab_size = 8192;
    model.hidden_size = moe.expert_size = 512;
    model.num_heads = 8;
    model.num_kv_heads = 4;
    moe.num_experts = 32;
    moe.top_k = 4;
    config.train.global_batch_size = 4;
    config.data.sequence_length = 512;
    return config;
  }
  if (name == "S") {
    model.vocab_size = 256;
    model.hidden_size = moe.expert_size = 256;
    model.num_heads = 4;
    model.num_kv_heads = 2;
    moe.num_experts = 16;
    moe.top_k = 2;
    config.train.global_batch_size = 8;
    config.data.sequence_length = 128;
    return config;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown shape '", name, "'; known: M, S"));
}

absl::StatusOr<train::Config> ConfigOf(absl::Span<const std::string> arguments) {
  int threads = 0;
  if (arguments.size() < 2 || !absl::SimpleAtoi(arguments[1], &threads)) {
    return absl::InvalidArgumentError("usage: training_bench M|S THREADS [KEY=VALUE...]");
  }
  MF_ASSIGN_OR_RETURN(train::Config shape, ShapeOf(arguments[0]));
  shape.runtime.threads = threads;
  return train::ParseConfig(train::ResolvedYaml(shape), absl::StrCat("shape ", arguments[0]),
                            arguments.subspan(2));
}

std::vector<int32_t> DocumentBorders(int64_t documents, int64_t length) {
  std::vector<int32_t> borders;
  for (int64_t d = 0; d <= documents; ++d) borders.push_back(static_cast<int32_t>(d * length));
  return borders;
}

// Documents [first, last) of the global batch.
MicroBatch RandomDocuments(const train::Config& config, int64_t first, int64_t last) {
  const RngKey key = MakeRngKey(1, "bench");
  const int64_t length = config.data.sequence_length;
  const auto vocab_size = static_cast<uint64_t>(config.model.vocab_size);
  MicroBatch micro_batch;
  micro_batch.cu_seqlens = DocumentBorders(last - first, length);
  for (int64_t i = first * length; i < last * length; ++i) {
    micro_batch.tokens.push_back(
        static_cast<int32_t>(UniformIntAt(key, static_cast<uint64_t>(i), vocab_size)));
  }
  for (size_t i = 1; i <= micro_batch.tokens.size(); ++i) {
    const bool is_last = i % static_cast<size_t>(length) == 0;
    micro_batch.targets.push_back(is_last ? kIgnoredTarget : micro_batch.tokens[i]);
  }
  return micro_batch;
}

// What rank `rank` of `world` trains on: its data part of every micro-batch.
absl::StatusOr<GlobalBatch> RandomBatch(const train::Config& config, int64_t rank, int64_t world) {
  MF_ASSIGN_OR_RETURN(const parallel::RankLayout layout, train::LayoutOf(config, world));
  LoaderOptions options;
  options.global_batch_size = config.train.global_batch_size;
  options.num_micro_batches = train::NumMicroBatches(config);
  options.num_data_parts = layout.dense.size("dp");
  options.data_part = layout.dense.coordinate(rank, "dp");
  if (options.global_batch_size % (options.num_micro_batches * options.num_data_parts) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "train.global_batch_size ", options.global_batch_size, " does not divide into ",
        options.num_micro_batches, " micro-batches of ", options.num_data_parts, " parts"));
  }
  GlobalBatch batch;
  for (int64_t m = 0; m < options.num_micro_batches; ++m) {
    const auto [first, last] = MicroBatchRange(options, m);
    batch.micro_batches.push_back(RandomDocuments(config, first, last));
  }
  return batch;
}

// One rank's trainer and its one batch.
class BenchRun {
 public:
  static absl::StatusOr<std::unique_ptr<BenchRun>> Create(const train::Config& config,
                                                          const train::World& world) {
    std::unique_ptr<BenchRun> run(new BenchRun(world));
    MF_ASSIGN_OR_RETURN(run->trainer_,
                        train::Trainer::Create(config, {.from = "none"}, run->logger_, world));
    MF_ASSIGN_OR_RETURN(run->batch_, RandomBatch(config, run->world().rank(), run->world().size()));
    return run;
  }

  comm::Communicator& world() const { return *world_.communicator; }
  int64_t live_bytes() const { return trainer_->runtime().allocator().stats().live_bytes; }

  // Of a step, over all ranks.
  int64_t tokens() const {
    const train::Config& config = trainer_->config();
    return config.train.global_batch_size * config.data.sequence_length;
  }
  double flops() const {
    const train::Config& config = trainer_->config();
    return train::TrainingFlops(
        trainer_->model().config,
        DocumentBorders(config.train.global_batch_size, config.data.sequence_length));
  }

  // Of the gradients that data-parallel ranks sum, with the padding that travels with them: what an
  // all-reduce over 2 ranks sends from each (comm/mpi_world.h, parallel/grad_bucket.h).
  int64_t gradient_bytes() const {
    int64_t elements = 0;
    for (const Parameter* parameter : ParametersOf(*trainer_->model().layers)) {
      if (!parameter->trained) continue;
      const Shape& shape = parameter->value.shape();
      elements += (shape.rows() * PaddedPitch(shape.cols(), DType::kF32) + 15) / 16 * 16;
    }
    return elements * SizeOf(DType::kF32);
  }

  // Forward, backward, clip, AdamW; the loss.
  absl::StatusOr<double> Step() {
    MF_ASSIGN_OR_RETURN(train::StepMetrics metrics, trainer_->Step(batch_));
    return metrics.loss;
  }

  // Returns once every rank is here.
  absl::Status Meet() {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> barrier, world().Barrier());
    return barrier->HostWait(world().deadline());
  }

 private:
  explicit BenchRun(const train::World& world) : world_(world) {}
  const train::World world_;
  Logger logger_;
  std::unique_ptr<train::Trainer> trainer_;
  GlobalBatch batch_;
};

// Memory of all ranks: resident at its peak, and live in the device pools.
absl::StatusOr<std::vector<double>> MemoryOfRanks(BenchRun& run) {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return parallel::SumOverRanks(run.world(), {static_cast<double>(usage.ru_maxrss) * 1024,
                                              static_cast<double>(run.live_bytes())});
}

// Runs `count` steps; rank 0 prints one JSON line.
absl::Status TimeSteps(BenchRun& run, int64_t count) {
  std::vector<double> seconds;
  double loss = 0.0;
  MF_RETURN_IF_ERROR(run.Meet());
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < count; ++i) {
    const Clock::time_point step_start = Clock::now();
    MF_ASSIGN_OR_RETURN(loss, run.Step());
    seconds.push_back(SecondsSince(step_start));
  }
  MF_RETURN_IF_ERROR(run.Meet());
  const double total = SecondsSince(start);
  MF_ASSIGN_OR_RETURN(const std::vector<double> memory, MemoryOfRanks(run));
  if (run.world().rank() != 0) return absl::OkStatus();
  const double steps = static_cast<double>(count);
  nlohmann::json line = {{"seconds_per_step", seconds},
                         {"elapsed_seconds", total},
                         {"tokens_per_second", static_cast<double>(run.tokens()) * steps / total},
                         {"gflops_per_second", run.flops() * steps / total * 1e-9},
                         {"ranks", run.world().size()},
                         {"peak_rss_bytes", static_cast<int64_t>(memory[0])},
                         {"device_live_bytes", static_cast<int64_t>(memory[1])},
                         {"gradient_bytes", run.gradient_bytes()},
                         {"loss", loss}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// Steps that standard input asks for; 0: to end.
absl::StatusOr<int64_t> ReadCommand() {
  std::string line;
  if (!std::getline(std::cin, line)) return 0;
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  int64_t count = 0;
  if (words.size() == 1 && words[0] == "quit") return 0;
  if (words.size() == 2 && words[0] == "step" && absl::SimpleAtoi(words[1], &count) && count > 0) {
    return count;
  }
  return absl::InvalidArgumentError(absl::StrCat("'", line, "' is none of: step N, quit"));
}

// What rank 0 reads, on every rank: standard input reaches rank 0 alone.
absl::StatusOr<int64_t> NextCommand(comm::Communicator& world) {
  const Tensor count = Tensor::Contiguous({1}, DType::kI64, SystemHostAllocator());
  if (world.rank() == 0) {
    MF_ASSIGN_OR_RETURN(*count.data<int64_t>(), ReadCommand());
  }
  MF_ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> broadcast, world.Broadcast(count, 0));
  absl::Status status;
  do {  // for as long as it takes: other programs have their turn
    status = broadcast->HostWait(world.deadline());
  } while (absl::IsDeadlineExceeded(status));
  MF_RETURN_IF_ERROR(status);
  return *count.data<int64_t>();
}

absl::Status Serve(BenchRun& run) {
  while (true) {
    MF_ASSIGN_OR_RETURN(const int64_t count, NextCommand(run.world()));
    if (count == 0) return absl::OkStatus();
    MF_RETURN_IF_ERROR(TimeSteps(run, count));
  }
}

absl::Status Main(const std::vector<std::string>& arguments) {
  MF_ASSIGN_OR_RETURN(const train::Config config, ConfigOf(arguments));
  return train::RunInLaunchedWorld([&](const train::World& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<BenchRun> run, BenchRun::Create(config, world));
    return Serve(*run);
  });
}

}  // namespace
}  // namespace meshfold

int main(int argc, char** argv) {
  const absl::Status status = meshfold::Main({argv + 1, argv + argc});
  if (status.ok()) return 0;
  if (!status.message().empty()) {  // else the rank that failed has said it
    std::fprintf(stderr, "training_bench: %s\n", std::string(status.message()).c_str());
  }
  return 1;
}
