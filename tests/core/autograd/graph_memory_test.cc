// What the graph holds, and when it lets go.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "core/tensor/allocator.h"
#include "memory/caching_allocator.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

int64_t LiveBytes() { return CurrentContext().allocator->stats().live_bytes; }

class GraphMemoryTest : public ::testing::Test {
 protected:
  // A pool of its own, so that live bytes are those of the test.
  GraphMemoryTest() : pool_("device", DeviceKind::kHost, SystemHostAllocator(), 0) {
    context_.context().allocator = &pool_;
  }

  // Takes memory from the system: a pool that never saw so many blocks of one size is slow to die.
  void UseSystemMemory() { context_.context().allocator = &SystemHostAllocator(); }

  memory::CachingAllocator pool_;
  ScopedTestContext context_;
};

constexpr int64_t kRows = 64, kCols = 48;
constexpr int64_t kBytes = kRows * kCols * 4;

// A chain of `length` ops that each save their input.
Variable Chain(Variable x, int64_t length) {
  for (int64_t i = 0; i < length; ++i) x = Sigmoid(x);
  return x;
}

// Identity that adds the live bytes during backward to `seen`.
Variable WatchMemory(const Variable& x, std::vector<int64_t>* seen) {
  return Record("WatchMemory", {x.data()}, {x}, Saved(), [=](BackwardCall& call) {
    seen->push_back(LiveBytes());
    call.Set(0, call.grad_out());
  })[0];
}

TEST_F(GraphMemoryTest, WhatNoOpSavedIsFreedInTheForward) {
  Variable x = Variable::Leaf(RandomTensor("x", {kRows, kCols}));
  int64_t before = LiveBytes();
  Variable y = x;
  for (int i = 0; i < 10; ++i) y = Scale(y, 0.9);  // saves nothing
  EXPECT_EQ(LiveBytes() - before, kBytes);
  y = Chain(y, 10);  // each saves its output
  EXPECT_EQ(LiveBytes() - before, 10 * kBytes);
}

TEST_F(GraphMemoryTest, NothingIsSavedUnderNoGrad) {
  Variable x = Variable::Leaf(RandomTensor("x", {kRows, kCols}));
  int64_t before = LiveBytes();
  ScopedGradMode no_grad(GradMode::kNoGrad);
  Variable y = Chain(x, 10);
  EXPECT_EQ(LiveBytes() - before, kBytes);
}

TEST_F(GraphMemoryTest, SavedTensorsGoDuringBackward) {
  Variable x = Variable::Leaf(RandomTensor("x", {kRows, kCols}));
  Tensor dy = RandomTensor("dy", {kRows, kCols});
  int64_t before = LiveBytes();
  std::vector<int64_t> seen;
  {
    Variable y = x;
    for (int i = 0; i < 5; ++i) y = WatchMemory(Chain(y, 4), &seen);
    EXPECT_EQ(LiveBytes() - before, 20 * kBytes);
    BackwardFrom(y, dy);
  }
  ASSERT_EQ(seen.size(), 5u);
  // y itself is held to the end.
  EXPECT_EQ(seen[0] - seen[1], 3 * kBytes - kBytes);  // a gradient beside dy has joined
  for (size_t i = 2; i < seen.size(); ++i) EXPECT_EQ(seen[i - 1] - seen[i], 4 * kBytes) << i;
  EXPECT_EQ(LiveBytes() - before, kBytes);  // the gradient of x
}

TEST_F(GraphMemoryTest, SlotsAreReleasedThoughTheOutputIsKept) {
  Variable x = Variable::Leaf(RandomTensor("x", {kRows, kCols}));
  Variable y = Sigmoid(x);
  EXPECT_EQ(y.grad_fn()->saved().slots().size(), 1u);
  BackwardFrom(y, RandomTensor("dy", {kRows, kCols}));
  EXPECT_TRUE(y.grad_fn()->saved().slots().empty());
  EXPECT_EQ(y.grad_fn()->backward(), nullptr);
}

// One stack frame a node would need far more than the 8 MiB of a thread.
TEST_F(GraphMemoryTest, LongChainsAreTornDownWithoutRecursion) {
  constexpr int64_t kLength = 200000;
  UseSystemMemory();
  Variable x = Variable::Leaf(Row({1}));
  int64_t before = LiveBytes();
  {
    Variable y = Chain(x, kLength);
    EXPECT_GE(LiveBytes() - before, kLength * 64);
  }
  EXPECT_EQ(LiveBytes(), before);
  Variable y = Chain(x, kLength);
  BackwardFrom(y, Row({1}));
  y = Variable();
  EXPECT_EQ(LiveBytes() - before, 64);  // the gradient of x
}

// Every node is the input of the next one twice, and of the one after it.
TEST_F(GraphMemoryTest, LongLatticesAreTornDownWithoutRecursion) {
  UseSystemMemory();
  Variable x = Variable::Leaf(Row({1}));
  int64_t before = LiveBytes();
  {
    Variable a = Sigmoid(x), b = Sigmoid(a);
    for (int64_t i = 0; i < 100000; ++i) {
      Variable c = Add(Multiply(b, b), a);
      a = b;
      b = c;
    }
    a = Variable();
    EXPECT_GT(LiveBytes() - before, 100000 * 64);
  }
  EXPECT_EQ(LiveBytes(), before);
}

TEST_F(GraphMemoryTest, AFailedBackwardFreesTheGraph) {
  Variable x = Variable::Leaf(RandomTensor("x", {kRows, kCols}));
  int64_t before = LiveBytes();
  {
    Variable y = Chain(Failing(Chain(x, 5)), 5);
    EXPECT_THROW(BackwardFrom(y, RandomTensor("dy", {kRows, kCols})), StatusError);
  }
  EXPECT_EQ(LiveBytes(), before);
}

// A small model: tied embedding, norm, attention, experts and loss head.
class Model {
 public:
  Variable Loss(int64_t m) const {
    Tensor ids = RandomIds("ids" + std::to_string(m), {kTokens}, 0, kVocab);
    Variable x = Embedding(table_, ids);
    Variable q = Linear(RmsNorm(x, norm_, {}), in_);
    AttentionOptions options{.num_heads = 2, .num_kv_heads = 2, .head_dim = 8, .value_dim = 8};
    std::vector<int32_t> cu_seqlens = {0, 5, kTokens};
    x = Add(x, Attention(q, q, q, cu_seqlens, cu_seqlens, options));
    x = Experts(x, RowCounts{{0, 7 - m % 3, kTokens}}, gate_up_, down_, Variable());
    return LinearCrossEntropy(x, table_, ids, {.scale = 0.1});
  }
  std::vector<Variable> leaves() const { return {table_, norm_, in_, gate_up_, down_}; }

 private:
  static constexpr int32_t kTokens = 12, kDim = 16, kVocab = 11, kHidden = 24;
  static Variable Weight(const char* name, const Shape& shape) {
    return Variable::Leaf(RandomTensor(name, shape, {.stddev = 0.1}));
  }
  Variable table_ = Weight("table", {kVocab, kDim}), norm_ = Weight("norm", {kDim}),
           in_ = Weight("in", {kDim, kDim}), gate_up_ = Weight("gate_up", {2, 2, kHidden, kDim}),
           down_ = Weight("down", {2, kDim, kHidden});
};

TEST_F(GraphMemoryTest, SteadyStateNeedsNoNewMemory) {
  Model model;
  AllocatorStats second;
  for (int step = 1; step <= 50; ++step) {
    for (const Variable& leaf : model.leaves()) leaf.grad().Reset();
    for (int64_t m = 0; m < 3; ++m) {
      BackwardMode mode = m == 1 ? BackwardMode::kInputOnly : BackwardMode::kFull;
      Backward(model.Loss(m),
               {.mode = mode, .micro_batch = m, .num_micro_batches = 3, .leaves = model.leaves()})
          .Run();
    }
    if (step == 2) second = pool_.stats();
  }
  AllocatorStats last = pool_.stats();
  EXPECT_EQ(last.live_bytes, second.live_bytes);
  EXPECT_EQ(last.peak_live_bytes, second.peak_live_bytes);
  EXPECT_EQ(last.num_system_allocations, second.num_system_allocations);
  EXPECT_GT(last.num_allocations, second.num_allocations);
}

}  // namespace
}  // namespace meshfold::testing
