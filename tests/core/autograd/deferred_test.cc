// kInputOnly backward followed by PendingWeights::Run: the same bits as kFull, later.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kTokens = 13, kDim = 20, kHidden = 9, kVocab = 17, kExperts = 3;

class DeferredTest : public ::testing::Test {
 protected:
  Variable Weight(const std::string& name, const Shape& shape) {
    weights_.push_back(Variable::Leaf(RandomTensor(name, shape, {.stddev = 0.3})));
    return weights_.back();
  }
  Variable Input(int64_t m) {
    return Variable(RandomTensor("x" + std::to_string(m), {kTokens, kDim}));
  }
  Tensor Targets(int64_t m) {
    return RandomIds("targets" + std::to_string(m), {kTokens}, -2, kVocab);
  }

  // Gradients of all weights after two micro-batches of `loss`.
  std::vector<Tensor> Gradients(BackwardMode mode, const std::function<Variable(int64_t)>& loss) {
    std::vector<Tensor> grads;
    for (Variable& weight : weights_) {
      weight.grad().Reset();
      weight.grad().SetBuffer(UnwrittenTensor(weight.shape()));
    }
    for (int64_t m = 0; m < 2; ++m) {
      PendingWeights pending = Backward(
          loss(m), {.mode = mode, .micro_batch = m, .num_micro_batches = 2, .leaves = weights_});
      EXPECT_EQ(pending.open(), mode == BackwardMode::kInputOnly);
      pending.Run();
      EXPECT_FALSE(pending.open());
    }
    for (Variable& weight : weights_) grads.push_back(weight.grad().tensor());
    return grads;
  }

  void ExpectSameBits(const std::function<Variable(int64_t)>& loss) {
    std::vector<Tensor> full = Gradients(BackwardMode::kFull, loss);
    std::vector<Tensor> split = Gradients(BackwardMode::kInputOnly, loss);
    for (size_t i = 0; i < full.size(); ++i) {
      ExpectBitEqual(split[i], full[i], "weight " + std::to_string(i));
    }
  }

  // A loss head of its own weight.
  Variable Loss(const Variable& x, int64_t m) {
    return LinearCrossEntropy(x, head_, Targets(m), {.scale = 0.125});
  }

  ScopedTestContext context_;
  std::vector<Variable> weights_;
  Variable head_ = Weight("head", {kVocab, kDim});
};

TEST_F(DeferredTest, LinearGivesTheSameBits) {
  Variable up = Weight("up", {2, kHidden, kDim}), down = Weight("down", {kDim, kHidden});
  ExpectSameBits([&](int64_t m) { return Loss(Linear(SwiGlu(Linear(Input(m), up)), down), m); });
}

TEST_F(DeferredTest, ExpertsGiveTheSameBits) {
  Variable gate_up = Weight("gate_up", {kExperts, 2, kHidden, kDim}),
           down = Weight("down", {kExperts, kDim, kHidden}), scale = Weight("scale", {kTokens}),
           in = Weight("in", {kDim, kDim});
  RowCounts rows{{0, 5, 5, kTokens}};
  ExpectSameBits([&](int64_t m) {
    return Loss(Experts(Linear(Input(m), in), rows, gate_up, down, Scale(scale, 2.0)), m);
  });
}

TEST_F(DeferredTest, ExpertsWithOneWeightAGroupGiveTheSameBits) {
  std::vector<Variable> gate_up, down;
  for (int64_t e = 0; e < kExperts; ++e) {
    gate_up.push_back(Weight("gate_up" + std::to_string(e), {2 * kHidden, kDim}));
    down.push_back(Weight("down" + std::to_string(e), {kDim, kHidden}));
  }
  RowCounts rows{{0, 4, 11, kTokens}};
  ExpectSameBits(
      [&](int64_t m) { return Loss(Experts(Input(m), rows, gate_up, down, Variable()), m); });
}

TEST_F(DeferredTest, TiedWeightsGiveTheSameBits) {
  Variable table = Weight("table", {kVocab, kDim});
  ExpectSameBits([&](int64_t m) {
    Variable x = Embedding(table, RandomIds("ids" + std::to_string(m), {kTokens}, 0, kVocab));
    return LinearCrossEntropy(x, table, Targets(m), {.scale = 1.0});
  });
}

// Of several uses, those that are deferred arrive after the others: the sum must not notice.
TEST_F(DeferredTest, ManyUsesOfATiedWeightGiveTheSameBits) {
  Variable table = Weight("table", {kVocab, kDim});
  ExpectSameBits([&](int64_t m) {
    Tensor ids = RandomIds("ids" + std::to_string(m), {kTokens}, 0, kVocab);
    Variable x = Embedding(table, ids);
    Variable first = LinearCrossEntropy(x, table, Targets(m), {.scale = 1.0});
    Variable y = Add(Scale(x, 0.3), Scale(Embedding(table, ids), 3.0));
    Variable second = LinearCrossEntropy(y, table, Targets(m + 1), {.scale = 0.7});
    return Add(first, second);
  });
}

TEST_F(DeferredTest, InputGradientsComeFirstAndWeightsWait) {
  Variable x = Variable::Leaf(Input(0).data()), w = Weight("w", {kDim, kDim}),
           norm = Variable::Leaf(RandomTensor("norm", {kDim}));
  std::vector<std::string> log;
  TraceOnGrad(x, "x", &log);
  TraceOnGrad(norm, "norm", &log);
  TraceOnGrad(w, "w", &log);
  TraceOnGrad(head_, "head", &log);
  Variable y = Loss(RmsNorm(Linear(x, w), norm, {}), 0);
  PendingWeights pending = Backward(y, {.mode = BackwardMode::kInputOnly, .leaves = weights_});
  EXPECT_THAT(log, ElementsAre("norm", "x"));
  EXPECT_EQ(w.grad().contributions(), 0);
  EXPECT_EQ(x.grad().contributions(), 1);
  pending.Run();
  EXPECT_THAT(log, ElementsAre("norm", "x", "head", "w"));
  EXPECT_EQ(w.grad().contributions(), 1);
  pending.Run();
  EXPECT_EQ(w.grad().contributions(), 1);
}

TEST_F(DeferredTest, InterleavedMicroBatchesGiveTheSameBits) {
  Variable w = Weight("w", {kDim, kDim});
  auto loss = [&](int64_t m) { return Loss(Linear(Input(m), w), m); };
  std::vector<Tensor> full = Gradients(BackwardMode::kFull, loss);
  for (Variable& weight : weights_) {
    weight.grad().Reset();
    weight.grad().SetBuffer(UnwrittenTensor(weight.shape()));
  }
  std::vector<PendingWeights> pending;
  for (int64_t m = 0; m < 2; ++m) {
    pending.push_back(Backward(loss(m), {.mode = BackwardMode::kInputOnly,
                                         .micro_batch = m,
                                         .num_micro_batches = 2,
                                         .leaves = weights_}));
  }
  for (PendingWeights& weights : pending) weights.Run();
  for (size_t i = 0; i < full.size(); ++i) {
    ExpectBitEqual(weights_[i].grad().tensor(), full[i], "weight " + std::to_string(i));
  }
}

// Micro-batch 1 does not reach w while the weight gradients of micro-batch 0 are still pending.
TEST_F(DeferredTest, AnUnreachedLeafWaitsForPendingMicroBatches) {
  Variable w = Weight("w", {kDim, kDim});
  int ready = 0;
  w.set_on_grad([&] { ++ready; });
  auto backward = [&](const Variable& y, int64_t m) {
    return Backward(y, {.mode = BackwardMode::kInputOnly,
                        .micro_batch = m,
                        .num_micro_batches = 3,
                        .leaves = weights_});
  };
  PendingWeights first = backward(Loss(Linear(Input(0), w), 0), 0);
  PendingWeights second = backward(Loss(Input(1), 1), 1);
  PendingWeights third = backward(Loss(Input(2), 2), 2);
  EXPECT_EQ(w.grad().contributions(), 0);
  first.Run();
  EXPECT_EQ(w.grad().contributions(), 3);
  EXPECT_EQ(ready, 1);
  second.Run();
  third.Run();
  EXPECT_EQ(w.grad().contributions(), 3);
  EXPECT_EQ(ready, 1);
}

// A deferrable node that no gradient reaches must not leave its weight open.
TEST_F(DeferredTest, WeightsOfUnreachedNodesAreCreditedZeroAtOnce) {
  Variable w = Weight("w", {kDim, kDim});
  Variable lost = Swallow(Linear(Input(0), w));
  weights_ = {w};
  PendingWeights pending =
      BackwardFrom(lost, RandomTensor("dy", {kTokens, kDim}), {.mode = BackwardMode::kInputOnly});
  EXPECT_FALSE(pending.open());
  EXPECT_EQ(w.grad().contributions(), 1);
  ExpectClose(w.grad().tensor(), std::vector<double>(kDim * kDim, 0.0), 0);
}

// Its gradient has to travel on through the op that made it.
TEST_F(DeferredTest, WeightsMadeByAnOpAreNotDeferred) {
  Variable shard = Weight("shard", {kDim, kDim});
  Variable y = Linear(Input(0), Scale(shard, 1.0));
  PendingWeights pending =
      BackwardFrom(y, RandomTensor("dy", {kTokens, kDim}), {.mode = BackwardMode::kInputOnly});
  EXPECT_FALSE(pending.open());
  EXPECT_EQ(shard.grad().contributions(), 1);
}

// Some experts are leaves, one was made by an op, one is frozen.
TEST_F(DeferredTest, ExpertsOfDifferentKindsGiveTheSameBits) {
  std::vector<Variable> gate_up, down;
  for (int64_t e = 0; e < kExperts; ++e) {
    gate_up.push_back(Weight("gate_up" + std::to_string(e), {2 * kHidden, kDim}));
    down.push_back(Weight("down" + std::to_string(e), {kDim, kHidden}));
  }
  Variable frozen(gate_up[2].data());
  RowCounts rows{{0, 4, 11, kTokens}};
  ExpectSameBits([&](int64_t m) {
    return Loss(
        Experts(Input(m), rows, {gate_up[0], Scale(gate_up[1], 1.0), frozen}, down, Variable()), m);
  });
  ExpectClose(weights_[5].grad().tensor(), std::vector<double>(2 * kHidden * kDim, 0.0), 0);
}

}  // namespace
}  // namespace meshfold::testing
