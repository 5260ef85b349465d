// The seam of recompute: a node's activations can be dropped after the forward and refilled through
// Saved::slots() before its backward, by running the region's forward again.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
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

constexpr int64_t kTokens = 40, kDim = 32, kHidden = 48;

using Nodes = std::vector<std::shared_ptr<Node>>;
using Region = std::function<Variable(const Variable&)>;

// The nodes from `y` down to, and without, the maker of `x`, in creation order.
Nodes NodesBetween(const Variable& y, const Variable& x) {
  Nodes nodes = {y.grad_fn()};
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const Edge& edge : nodes[i]->inputs()) {
      if (edge.node == nullptr || edge.node == x.grad_fn()) continue;
      if (std::find(nodes.begin(), nodes.end(), edge.node) == nodes.end()) {
        nodes.push_back(edge.node);
      }
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const auto& a, const auto& b) { return a->sequence() < b->sequence(); });
  return nodes;
}

int DropActivations(const Nodes& nodes) {
  const Tensor none;
  int dropped = 0;
  for (const std::shared_ptr<Node>& node : nodes) {
    for (Saved::Slot& slot : node->saved().slots()) {
      if (slot.kind != Saved::Kind::kActivation || !slot.tensor.defined()) continue;
      slot.tensor = none;
      ++dropped;
    }
  }
  return dropped;
}

void Refill(const Nodes& nodes, const Nodes& replayed) {
  ASSERT_EQ(nodes.size(), replayed.size());
  for (size_t n = 0; n < nodes.size(); ++n) {
    ASSERT_STREQ(nodes[n]->name(), replayed[n]->name());
    absl::Span<Saved::Slot> slots = nodes[n]->saved().slots();
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].kind != Saved::Kind::kActivation) continue;
      slots[i].tensor = replayed[n]->saved().Get(static_cast<int>(i));
    }
  }
}

class RecomputeTest : public ::testing::Test {
 protected:
  Variable Weight(const std::string& name, const Shape& shape) {
    weights_.push_back(Variable::Leaf(RandomTensor(name, shape, {.stddev = 0.2})));
    return weights_.back();
  }

  // One decoder block without MoE.
  Variable Block(const Variable& x) {
    AttentionOptions options{
        .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .value_dim = 8, .scale = 0.35};
    std::vector<int32_t> cu_seqlens = {0, 13, kTokens};
    Variable h = RmsNorm(x, norm_, {});
    Variable q = Linear(h, q_), k = Linear(h, k_), v = Linear(h, v_);
    Variable attended = Attention(q, k, v, cu_seqlens, cu_seqlens, options);
    auto [sum, y] = AddRmsNorm(Linear(attended, o_), x, norm2_, {});
    return Add(sum, Experts(y, RowCounts{{0, 11, kTokens}}, gate_up_, down_, Variable()));
  }

  // `region` with its activations dropped at once; the identity behind it runs first in backward
  // and fills them in again.
  Variable Recomputed(const Region& region, const Variable& x) {
    Variable y = region(x);
    Nodes nodes = NodesBetween(y, x);
    dropped_ = DropActivations(nodes);
    Saved saved;
    int x_slot = saved.Activation("x", x.data());
    auto backward = [=](BackwardCall& call) {
      Variable again = Variable::Leaf(call.saved(x_slot));
      Refill(nodes, NodesBetween(region(again), again));
      call.Set(0, call.grad_out());
    };
    return Record("Recompute", {y.data()}, {y}, std::move(saved), backward)[0];
  }

  std::vector<Tensor> Gradients(const std::function<Variable(const Variable&)>& model) {
    for (Variable& weight : weights_) {
      weight.grad().Reset();
      weight.grad().SetBuffer(UnwrittenTensor(weight.shape()));
    }
    Variable y = model(Linear(Variable(RandomTensor("x", {kTokens, kDim})), in_));
    BackwardFrom(y, RandomTensor("dy", {kTokens, kDim}));
    std::vector<Tensor> grads;
    for (Variable& weight : weights_) grads.push_back(weight.grad().tensor());
    return grads;
  }

  ScopedTestContext context_;
  std::vector<Variable> weights_;
  Variable in_ = Weight("in", {kDim, kDim}), norm_ = Weight("norm", {kDim}),
           norm2_ = Weight("norm2", {kDim}), q_ = Weight("q", {kDim, kDim}),
           k_ = Weight("k", {16, kDim}), v_ = Weight("v", {16, kDim}),
           o_ = Weight("o", {kDim, kDim}), gate_up_ = Weight("gate_up", {2, 2, kHidden, kDim}),
           down_ = Weight("down", {2, kDim, kHidden});
  int dropped_ = 0;
};

TEST_F(RecomputeTest, GradientsAreTheSameToTheBit) {
  auto block = [this](const Variable& x) { return Block(x); };
  std::vector<Tensor> stored = Gradients([&](const Variable& x) { return block(block(x)); });
  std::vector<Tensor> recomputed =
      Gradients([&](const Variable& x) { return Recomputed(block, Recomputed(block, x)); });
  EXPECT_GE(dropped_, 10);
  for (size_t i = 0; i < stored.size(); ++i) {
    ExpectBitEqual(recomputed[i], stored[i], "weight " + std::to_string(i));
  }
}

TEST_F(RecomputeTest, DroppedActivationsAreFreed) {
  auto block = [this](const Variable& x) { return Block(x); };
  Variable x = Linear(Variable(RandomTensor("x", {kTokens, kDim})), in_);
  auto live = [] { return SystemHostAllocator().stats().live_bytes; };
  int64_t before = live();
  Variable stored = block(x);
  int64_t block_bytes = live() - before;
  before = live();
  Variable recomputed = Recomputed(block, x);
  // What stays is the output.
  EXPECT_LE(live() - before, kTokens * kDim * 4);
  EXPECT_GE(block_bytes, 10 * kTokens * kDim * 4);
}

}  // namespace
}  // namespace meshfold::testing
