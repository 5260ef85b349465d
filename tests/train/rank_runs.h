// Training runs on ranks as threads, and whole tensors put together from their parts.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/nn/module.h"
#include "core/tensor/tensor.h"
#include "tests/train/small_run.h"

namespace meshfold::train {

using State = std::map<std::string, Tensor>;

// The L2 norm of the difference over that of `b`; 0 for two zeros, infinite where `b` alone is
// zero.
double RelativeError(const Tensor& a, const Tensor& b);
// The same names and shapes, every tensor's relative error at most `tolerance`.
void ExpectClose(const State& a, const State& b, double tolerance = 1e-5);

// Whole tensors out of the parts that ranks add, from any thread. Parts of one box must be equal,
// bit for bit: replicas.
class WholeState {
 public:
  void Add(const std::string& name, const Shape& shape, const Box& part, const Tensor& tensor);
  // Every element must have been added.
  State Take();

 private:
  struct Whole {
    Tensor tensor;
    std::map<std::string, Tensor> parts;  // by the box's text
    int64_t missing = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Whole> wholes_;
};

// What a few steps do to a model, whatever the ranks were.
struct RunResult {
  std::vector<StepMetrics> steps;
  State gradients;  // of the first step, before clipping
  State moments;    // of the optimizer after the first step
  State state;      // weights, buffers and optimizer state after the last
};

class RankRunsTest : public SmallRunTest {
 protected:
  // Runs `body` on `size` ranks; the test fails when it does.
  static void OnRanks(int size, const std::function<absl::Status(const World&)>& body);

  static constexpr int kSteps = 3;
  RunResult TrainAlone(const Config& config);
  // Steps are rank 0's; every rank's metrics must be the same.
  RunResult TrainOnRanks(const Config& config, int size);
  // On `size` ranks as alone: losses, norm, gradients, moments after one step, and (with SGD) the
  // state after all.
  void ExpectSame(const Config& config, const RunResult& alone, int size);
  void ExpectSame(const Config& config, int size) { ExpectSame(config, TrainAlone(config), size); }

  // Whole weights, buffers and optimizer state of the trainers on all ranks: each calls it.
  static void AddWholeState(Trainer& trainer, WholeState& state);

 private:
  struct Collected {
    WholeState gradients, moments, state;
  };
  static std::vector<StepMetrics> Train(Trainer& trainer, Collected& collected);
};

}  // namespace meshfold::train
