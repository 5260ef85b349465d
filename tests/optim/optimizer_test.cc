#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/backend/backend.h"
#include "tests/core/io/scratch.h"
#include "tests/optim/parameters.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::optim {
namespace {

using testing::ExpectClose;
using testing::MakeTensor;
using testing::ParameterOf;
using testing::SetGradient;

class OptimizerTest : public ::testing::Test {
 protected:
  static std::unique_ptr<Optimizer> Make(const OptimizerOptions& options,
                                         std::vector<Parameter*> parameters) {
    return Optimizer::Create(options, parameters).value();
  }

  testing::ScopedTestContext context_;
};

// One weight, gradient 1, lr 0.1, betas 0.9 and 0.999, eps 0: a wrong counter gives 0.0744.
TEST_F(OptimizerTest, FirstAdamUpdateIsTheLearningRate) {
  Parameter w = ParameterOf("w", MakeTensor({1}, {1}));
  auto optimizer = Make({.rule_options = {.beta1 = 0.9, .beta2 = 0.999, .eps = 0}}, {&w});
  EXPECT_EQ(optimizer->num_steps(), 0);
  SetGradient(w, MakeTensor({1}, {1}));
  optimizer->Step(0.1, Tensor());
  ExpectClose(w.value.data(), {0.9}, 1e-6);
  EXPECT_EQ(optimizer->num_steps(), 1);
}

TEST_F(OptimizerTest, CorrectsTheBiasOfTheStepItWasSetTo) {
  Parameter w = ParameterOf("w", MakeTensor({1}, {1}));
  auto optimizer = Make({.rule_options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 0}}, {&w});
  optimizer->set_num_steps(4);  // moments are still zero
  SetGradient(w, MakeTensor({2}, {1}));
  optimizer->Step(0.1, Tensor());
  EXPECT_EQ(optimizer->num_steps(), 5);
  const double m = 0.1 * 2 / (1 - std::pow(0.9, 5)), v = 0.01 * 4 / (1 - std::pow(0.99, 5));
  ExpectClose(w.value.data(), {1 - 0.1 * m / std::sqrt(v)}, 1e-6);
}

TEST_F(OptimizerTest, DecaysOnlyWhatDecays) {
  Parameter matrix = ParameterOf("matrix", MakeTensor({2}, {1})),
            norm = ParameterOf("norm", MakeTensor({2}, {1}), /*decay=*/false);
  auto optimizer = Make({.rule = "sgd", .weight_decay = 0.5}, {&matrix, &norm});
  for (Parameter* parameter : {&matrix, &norm}) SetGradient(*parameter, MakeTensor({1}, {1}));
  optimizer->Step(0.1, Tensor());
  ExpectClose(matrix.value.data(), {2 - 0.1 * 0.5 * 2 - 0.1}, 1e-6);
  ExpectClose(norm.value.data(), {2 - 0.1}, 1e-6);
}

// An expert without tokens has a zero gradient, not none: it decays and its moments fade.
TEST_F(OptimizerTest, IdleParametersDecayAndTheirMomentsMove) {
  Parameter idle = ParameterOf("idle", MakeTensor({1}, {1}));
  auto optimizer = Make({.weight_decay = 0.1}, {&idle});
  std::vector<double> kGrads = {0.5, 0, 0};
  double p = 1, m = 0, v = 0;
  for (int step = 1; step <= 3; ++step) {
    const double g = kGrads[static_cast<size_t>(step) - 1];
    SetGradient(idle, MakeTensor({g}, {1}));
    optimizer->Step(0.01, Tensor());
    m = 0.9 * m + 0.1 * g;
    v = 0.95 * v + 0.05 * g * g;
    p -= 0.01 * 0.1 * p;
    p -= 0.01 * m / (1 - std::pow(0.9, step)) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    ExpectClose(idle.value.data(), {p}, 1e-6);
  }
  std::vector<std::pair<std::string, double>> state;
  optimizer->VisitState([&](const std::string& name, const Tensor& tensor) {
    state.emplace_back(name, ToVector<double>(tensor)[0]);
  });
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].first, "m/idle");
  EXPECT_NEAR(state[0].second, m, 1e-7);
  EXPECT_EQ(state[1].first, "v/idle");
  EXPECT_NEAR(state[1].second, v, 1e-7);
}

TEST_F(OptimizerTest, ScalesGradientsResetsThemAndBumpsVersions) {
  Parameter w = ParameterOf("w", MakeTensor({1, 1}, {2}));
  auto optimizer = Make({.rule = "sgd"}, {&w});
  SetGradient(w, MakeTensor({4, 8}, {2}));
  const uint64_t version = w.value.version();
  optimizer->Step(0.5, MakeTensor({0.25}, {1}));
  ExpectClose(w.value.data(), {0.5, 0}, 0);
  EXPECT_EQ(w.value.grad().contributions(), 0);
  EXPECT_FALSE(w.value.grad().Begin(w.value.data(), 0).accumulate);
  EXPECT_GT(w.value.version(), version);
}

TEST_F(OptimizerTest, LeavesBuffersAndFrozenParametersAlone) {
  Parameter w = ParameterOf("w", MakeTensor({1}, {1})),
            buffer = ParameterOf("buffer", MakeTensor({1}, {1})),
            frozen = ParameterOf("frozen", MakeTensor({1}, {1}));
  buffer.trained = false;
  auto optimizer = Make({.rule = "sgd", .weight_decay = 0.1}, {&buffer, &frozen, &w});
  EXPECT_EQ(optimizer->parameters(), (std::vector<Parameter*>{&frozen, &w}));
  frozen.value.set_requires_grad(false);
  SetGradient(w, MakeTensor({1}, {1}));
  optimizer->Step(0.5, Tensor());
  ExpectClose(frozen.value.data(), {1}, 0);
  ExpectClose(buffer.value.data(), {1}, 0);
  EXPECT_NE(ToVector<float>(w.value.data())[0], 1);
}

TEST_F(OptimizerTest, RefusesToUseAGradientTwice) {
  Parameter a = ParameterOf("a", MakeTensor({1}, {1})), b = ParameterOf("b", MakeTensor({1}, {1}));
  auto optimizer = Make({}, {&a, &b});
  for (Parameter* parameter : {&a, &b}) SetGradient(*parameter, MakeTensor({1}, {1}));
  optimizer->Step(0.1, Tensor());
  EXPECT_DEATH(optimizer->Step(0.1, Tensor()), "'a' has gradients of 0 micro-batches");
  SetGradient(a, MakeTensor({1}, {1}));
  EXPECT_DEATH(optimizer->Step(0.1, Tensor()), "'b' has gradients of 0 .*others of 1");
}

TEST_F(OptimizerTest, KeepsMastersOf16BitParameters) {
  Tensor start = testing::RandomTensor("p", {3, 8}, {.dtype = DType::kBF16});
  Tensor start_f32 = testing::UnwrittenTensor({3, 8});
  CurrentBackend().Copy(start, start_f32);
  Parameter bf16 = ParameterOf("w", start), f32 = ParameterOf("w", start_f32);
  auto mixed = Make({.weight_decay = 0.1}, {&bf16}), plain = Make({.weight_decay = 0.1}, {&f32});
  for (int step = 0; step < 3; ++step) {
    Tensor grad = testing::RandomTensor("g" + std::to_string(step), {3, 8});
    SetGradient(bf16, grad);
    SetGradient(f32, grad);
    mixed->Step(1e-3, Tensor());
    plain->Step(1e-3, Tensor());
  }
  std::vector<std::string> names;
  mixed->VisitState([&](const std::string& name, const Tensor& tensor) {
    names.push_back(name);
    EXPECT_EQ(tensor.dtype(), DType::kF32) << name;
    EXPECT_EQ(tensor.shape(), (Shape{3, 8})) << name;
    if (name == "master/w") testing::ExpectBitEqual(tensor, f32.value.data());
  });
  EXPECT_EQ(names, (std::vector<std::string>{"m/w", "v/w", "master/w"}));
  Tensor rounded = testing::UnwrittenTensor({3, 8}, DType::kBF16);
  CurrentBackend().Copy(f32.value.data(), rounded);
  testing::ExpectBitEqual(bf16.value.data(), rounded);
}

TEST_F(OptimizerTest, CopiesLoadedWeightsToMasters) {
  Parameter w = ParameterOf("w", MakeTensor({1, 2}, {2}, DType::kBF16));
  auto optimizer = Make({.rule = "sgd"}, {&w});
  CurrentBackend().Fill(3.0, w.value.data());
  optimizer->CopyToMasters();
  optimizer->VisitState([](const std::string&, const Tensor& tensor) {
    ExpectClose(tensor, {3, 3}, 0);
  });
}

TEST_F(OptimizerTest, RefusesWhatItCannotTrain) {
  Parameter f32 = ParameterOf("f32", MakeTensor({1}, {1})),
            bf16 = ParameterOf("bf16", MakeTensor({1}, {1}, DType::kBF16)),
            i32 = ParameterOf("i32", MakeTensor({1}, {1}, DType::kI32)),
            unset = MakeParameter("unset", {2}, {});
  auto create = [](const OptimizerOptions& options, std::vector<Parameter*> parameters) {
    return Optimizer::Create(options, parameters).status();
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(FailsWith(create({.rule = "adamx"}, {&f32}), absl::StatusCode::kNotFound,
                        "'adamx'; known: adamw, sgd"));
  EXPECT_TRUE(FailsWith(create({.rule_options = {.beta1 = 2}}, {&f32}), kInvalid, "beta1 2"));
  EXPECT_TRUE(FailsWith(create({.weight_decay = -1}, {&f32}), kInvalid, "weight_decay -1"));
  EXPECT_TRUE(FailsWith(create({.weight_decay = NAN}, {&f32}), kInvalid, "weight_decay nan"));
  EXPECT_TRUE(FailsWith(create({.master_weights = false}, {&f32, &bf16}), kInvalid,
                        "'bf16' is bf16 and needs optimizer.master_weights: true"));
  EXPECT_TRUE(FailsWith(create({}, {&i32}), kInvalid, "'i32' is i32"));
  EXPECT_TRUE(FailsWith(create({}, {&f32, &f32}), kInvalid, "'f32' is given twice"));
  EXPECT_TRUE(FailsWith(create({}, {&unset}), absl::StatusCode::kFailedPrecondition, "'unset'"));
  MF_EXPECT_OK(create({.master_weights = false}, {&f32}));
}

// Gives out `limit` bytes.
class SmallAllocator : public Allocator {
 public:
  explicit SmallAllocator(int64_t limit) : left_(limit) {}
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (bytes > left_) return absl::ResourceExhaustedError("the pool is full");
    left_ -= bytes;
    return SystemHostAllocator().Allocate(bytes);
  }
  void Free(void* block, int64_t bytes) override { SystemHostAllocator().Free(block, bytes); }
  AllocatorStats stats() const override { return {}; }
  DeviceKind device() const override { return DeviceKind::kHost; }

 private:
  int64_t left_;
};

TEST_F(OptimizerTest, ReportsAFullPool) {
  Parameter w = ParameterOf("w", testing::RandomTensor("w", {100}));
  SmallAllocator pool(600);  // the first moment fits, the second does not
  context_.context().allocator = &pool;
  absl::Status status = Optimizer::Create({}, {&w}).status();
  context_.context().allocator = &SystemHostAllocator();
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, "the pool is full"));
}

}  // namespace
}  // namespace meshfold::optim
