// Parameters cut by hand over every kind of axis, with an optimizer, for tests of what ranks save,
// load and gather. Every element is a function of its tensor's name and its place in the whole.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/nn/init.h"
#include "core/nn/module.h"
#include "optim/optimizer.h"
#include "parallel/rank_layout.h"
#include "parallel/sharding.h"
#include "parallel/state_tensors.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {

class ShardedModel : public Module {
 public:
  // What `rank` of `ranks` holds; with stages, only what its stage does.
  ShardedModel(const parallel::RankLayout& ranks, int64_t rank) {
    using Kind = Placement::Kind;
    const Layout over_rows{"dense", {{"tp", Kind::kShard, 0, 1 << 10}}};
    const Layout over_cols{"dense", {{"tp", Kind::kShard, 1, 1 << 10}}};
    const Layout few_heads{"dense", {{"tp", Kind::kShard, 0, 2}}};
    const Layout experts{"expert", {{"ep", Kind::kShard, 0, 1 << 10}, {"etp", Kind::kShard, 2, 4}}};
    Add("embedding", {11, 6}, over_rows, DType::kBF16, {0});
    Add("column", {5, 256}, over_rows, DType::kF32, {0});
    Add("row", {6, 8}, over_cols, DType::kF16, {0});
    Add("kv", {4, 3}, few_heads, DType::kF32, {0});
    Add("norm", {7}, Layout(), DType::kF32, {1});
    Add("experts", {5, 2, 3, 4}, experts, DType::kBF16, {1});
    Add("scale", {}, Layout(), DType::kF32, {1});
    Add("tied", {3, 2}, Layout(), DType::kF32, {0, 1});
    Add("bias", {5}, Layout(), DType::kF32, {1});
    parameters_.back()->trained = false;
    parameters_.back()->value.set_requires_grad(false);
    KeepStage(ranks.dense.size("pp"), ranks.dense.coordinate(rank, "pp"));
    for (auto& parameter : parameters_) {
      parameter->part =
          parallel::LocalBox(parameter->shape, parameter->layout, ranks, rank).value();
    }
  }
  void VisitParameters(ParameterVisitor visit) override {
    for (auto& parameter : parameters_) visit(*parameter);
  }

 protected:
  Variable Forward(const Variable& x, StepContext&) override { return x; }

 private:
  void Add(std::string name, Shape shape, Layout layout, DType dtype, std::vector<int> stages) {
    parameters_.push_back(
        std::make_unique<Parameter>(MakeParameter(std::move(name), shape, InitSpec())));
    parameters_.back()->layout = std::move(layout);
    parameters_.back()->dtype = dtype;
    parameters_.back()->stages = std::move(stages);
  }
  void KeepStage(int64_t num_stages, int64_t stage) {
    std::vector<std::unique_ptr<Parameter>> kept;
    for (auto& parameter : parameters_) {
      if (num_stages == 1) parameter->stages.clear();
      bool here = num_stages == 1;
      for (int s : parameter->stages) here = here || s == stage;
      if (here) kept.push_back(std::move(parameter));
    }
    parameters_ = std::move(kept);
  }

  std::vector<std::unique_ptr<Parameter>> parameters_;
};

// A rank's part of a training.
struct ShardedTraining {
  explicit ShardedTraining(const parallel::RankLayout& ranks, int64_t rank = 0)
      : model(ranks, rank) {
    Initialize(model, 9);
    optimizer = optim::Optimizer::Create({.rule = "adamw"}, ParametersOf(model)).value();
  }

  // The part that this rank holds of the whole tensor named state.name in generation `generation`.
  static Tensor Wanted(const parallel::StateTensor& state, int generation) {
    const Parameter& parameter = *state.parameter;
    const DType dtype = state.tensor.dtype();
    Tensor whole =
        RandomTensor(absl::StrCat(state.name, generation), parameter.shape, {.dtype = dtype});
    Tensor part = UnwrittenTensor(parameter.part.shape(), dtype);
    CopyFromWhole(whole, parameter.part, part);
    return part;
  }

  void Fill(int generation) {
    for (const parallel::StateTensor& state : State()) {
      CopyIntoWhole(Wanted(state, generation), Box::Whole(state.tensor.shape()), state.tensor);
    }
    optimizer->set_num_steps(generation + 100);
  }
  void ExpectFilled(int generation) {
    for (const parallel::StateTensor& state : State()) {
      ExpectBitEqual(WithPadding(state.tensor, Padding::kNone), Wanted(state, generation),
                     state.name);
    }
    EXPECT_EQ(optimizer->num_steps(), generation + 100);
  }
  std::vector<parallel::StateTensor> State() {
    return parallel::StateTensorsOf(model, optimizer.get()).value();
  }

  ShardedModel model;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// A world and how it is arranged.
struct WorldCase {
  const char* name;
  int size;
  parallel::ParallelSizes sizes;
  parallel::RankLayout ranks() const { return parallel::PlanRanks(sizes, size).value(); }
};

inline std::vector<WorldCase> WorldCases() {
  return {
      {"one", 1, {}},
      {"data 2", 2, {}},
      {"tensor 2", 2, {.tensor = 2}},
      {"expert 2", 2, {.expert = 2}},
      {"tensor 4", 4, {.tensor = 4, .expert_tensor = 2}},
      {"tensor 2, expert 4", 4, {.tensor = 2, .expert = 4}},
      {"context 2, expert 2, expert tensor 2", 4, {.expert = 2, .expert_tensor = 2, .context = 2}},
      {"tensor 4, expert 4", 8, {.tensor = 4, .expert = 4}},
      {"tensor 2, expert 2, expert tensor 4", 8, {.tensor = 2, .expert = 2, .expert_tensor = 4}}};
}

}  // namespace meshfold::testing
