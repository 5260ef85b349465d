// A small model in training, and its whole state: for tests of what a checkpoint keeps.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "optim/optimizer.h"
#include "parallel/grad_norm.h"
#include "parallel/stage.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/small_model.h"
#include "tests/testing/expect_close.h"

namespace meshfold::testing {

// A model in training.
struct Training {
  explicit Training(DType dtype = DType::kF32,
                    const optim::OptimizerOptions& options = {.weight_decay = 0.1},
                    uint64_t seed = 1, int64_t hidden_size = 6)
      : model(MakeSmallModel(dtype, hidden_size)) {
    Initialize(*model, seed);
    optimizer = optim::Optimizer::Create(options, ParametersOf(*model)).value();
  }

  // Trains on the batch of step number `step`; the loss.
  float Step(int step) {
    parallel::Stage stage(*model);
    stage.BeginStep(2);
    float loss = 0;
    for (int64_t m = 0; m < 2; ++m) {
      StepContext context(MakeSmallBatch(absl::StrCat("step ", step, ".", m), 5),
                          {.loss_scale = 0.1});
      MF_EXPECT_OK(stage.Forward(m, context));
      MF_EXPECT_OK(stage.Backward(m));
      loss += ToVector<float>(stage.loss(m))[0];
    }
    const double norm = parallel::GradNorm(optimizer->parameters());
    optimizer->Step(0.05, parallel::ClipScale(norm, 1.0));
    return loss;
  }

  // Copies of all parameters, buffers and state.
  std::map<std::string, Tensor> Tensors() {
    std::map<std::string, Tensor> tensors;
    auto add = [&](const std::string& name, const Tensor& tensor) {
      tensors[name] = WithPadding(tensor, Padding::kNone);
    };
    model->VisitParameters([&](Parameter& p) { add("model/" + p.name, p.value.data()); });
    optimizer->VisitState([&](const std::string& n, const Tensor& t) { add("optimizer/" + n, t); });
    return tensors;
  }

  std::unique_ptr<LayerStack> model;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// The same names and bits.
inline void ExpectEqual(const std::map<std::string, Tensor>& a,
                        const std::map<std::string, Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) ExpectBitEqual(tensor, b.at(name), name);
}

}  // namespace meshfold::testing
