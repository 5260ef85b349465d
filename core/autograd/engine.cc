#include "core/autograd/engine.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/backend/backend.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

struct EarlierIsLess {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->sequence() < b->sequence();
  }
};

// `sum` += `grad`, in place when nobody else holds the sum's memory.
void AddTo(Tensor& sum, const Tensor& grad) {
  if (!sum.defined()) {
    sum = grad;
    return;
  }
  if (sum.storage().use_count() == 1) {
    CurrentBackend().Add(sum, grad, sum);
    return;
  }
  Tensor out = Tensor::Empty(sum.shape());
  CurrentBackend().Add(sum, grad, out);
  sum = out;
}

void CheckGradShape(const Tensor& grad, const Shape& wanted, const char* what) {
  MF_CHECK(grad.shape() == wanted)
      << " gradient " << grad.ToString() << " for " << wanted << " of " << what;
}

}  // namespace

// One backward over one graph. Lives on inside PendingWeights while weight gradients are open.
class Engine {
 public:
  explicit Engine(BackwardOptions options) : options_(std::move(options)) {}

  void Run(absl::Span<const Root> roots) {
    CountLeafUses(roots);
    for (const Root& root : roots) {
      // Above every node: a root's gradient comes first in any sum.
      if (root.grad.defined()) Deliver(EdgeTo(root.variable), root.grad, ~uint64_t{0});
    }
    while (!ready_.empty()) {
      std::shared_ptr<Node> node = ready_.top();
      ready_.pop();
      RunNode(node);
    }
    // Leaves that no gradient reached; the deferred calls will complete the leaves they wait for.
    for (const Variable& leaf : options_.leaves) {
      if (!uses_[leaf.state()].pending) Complete(leaf);
    }
    for (const Variable& leaf : touched_) {
      if (!uses_[leaf.state()].pending) Complete(leaf);
    }
  }

  bool HasDeferred() const { return !deferred_.empty(); }

  void RunDeferred() {
    for (DeferredCall& call : deferred_) {
      CallBackward(*call.node, call.grads_out, call.stash, {.needs = DeferredInputs(*call.node)});
      call.node->Release();
      call = DeferredCall();
    }
    for (const Variable& leaf : touched_) Complete(leaf);
  }

 private:
  struct Part {
    uint64_t sequence;  // of the node it comes from
    Tensor grad;
  };
  struct LeafUses {
    int64_t count = 0;        // edges to the leaf in this graph
    int64_t deferrable = 0;   // of those, left to a deferred call if their node runs
    int64_t remaining = 0;    // of those in count, not yet run
    bool pending = false;     // some deferred call waits to be run
    bool written = false;     // an op wrote straight into the leaf's gradient
    bool completed = false;   // the contribution is in
    std::vector<Part> parts;  // gradients that arrived as tensors, added up where order allows
  };
  struct DeferredCall {
    std::shared_ptr<Node> node;
    std::vector<Tensor> grads_out;
    Stash stash;
  };

  // Which inputs of `node` are left to the deferred call: weights that are leaves. A weight that
  // another op made (gathered from shards) is not deferred, since its gradient has to travel on.
  std::vector<bool> DeferredInputs(const Node& node) const {
    std::vector<bool> deferred(node.inputs().size(), false);
    if (options_.mode != BackwardMode::kInputOnly) return deferred;
    for (int i : node.deferrable()) {
      deferred[static_cast<size_t>(i)] = node.inputs()[static_cast<size_t>(i)].is_leaf();
    }
    return deferred;
  }

  void CountLeafUses(absl::Span<const Root> roots) {
    absl::flat_hash_set<const Node*> seen;
    std::vector<const Node*> stack;
    auto visit = [&](const Edge& edge, bool deferred) {
      if (edge.node != nullptr && seen.insert(edge.node.get()).second) {
        stack.push_back(edge.node.get());
      }
      if (!edge.is_leaf()) return;
      auto [it, is_new] = uses_.try_emplace(edge.leaf.state());
      ++it->second.count;
      ++it->second.remaining;
      it->second.deferrable += deferred ? 1 : 0;
      if (is_new) touched_.push_back(edge.leaf);
    };
    for (const Root& root : roots) visit(EdgeTo(root.variable), false);
    while (!stack.empty()) {
      const Node* node = stack.back();
      stack.pop_back();
      std::vector<bool> deferred = DeferredInputs(*node);
      for (size_t i = 0; i < deferred.size(); ++i) visit(node->inputs()[i], deferred[i]);
    }
  }

  // Hands `grad`, computed by node `sequence`, to whoever made the variable behind `edge`.
  void Deliver(const Edge& edge, const Tensor& grad, uint64_t sequence) {
    if (edge.is_leaf()) {
      DeliverToLeaf(edge.leaf, grad, sequence);
      return;
    }
    if (edge.node == nullptr) return;
    size_t output = static_cast<size_t>(edge.output_index);
    CheckGradShape(grad, edge.node->output_shapes()[output], edge.node->name());
    auto [it, is_new] = arrived_.try_emplace(edge.node.get());
    if (is_new) {
      it->second.resize(edge.node->output_shapes().size());
      ready_.push(edge.node);
    }
    AddTo(it->second[output], grad);
  }

  void DeliverToLeaf(const Variable& leaf, const Tensor& grad, uint64_t sequence) {
    if (leaf.data().defined()) CheckGradShape(grad, leaf.shape(), "a leaf");
    LeafUses& uses = uses_[leaf.state()];
    // With uses both now and deferred, parts arrive out of node order. Of two, order is no matter.
    bool in_order = uses.deferrable == 0 || uses.deferrable == uses.count || uses.count == 2;
    if (uses.parts.empty() || !in_order) {
      uses.parts.push_back({sequence, grad});
    } else {
      AddTo(uses.parts[0].grad, grad);
    }
  }

  void RunNode(const std::shared_ptr<Node>& node) {
    auto it = arrived_.find(node.get());
    std::vector<Tensor> grads_out = std::move(it->second);
    arrived_.erase(it);
    std::vector<bool> deferred = DeferredInputs(*node);
    BackwardCall::Options call{.needs = std::vector<bool>(deferred.size())};
    bool needs_some = false;
    for (size_t i = 0; i < deferred.size(); ++i) {
      const Edge& input = node->inputs()[i];
      call.needs[i] = input.needs_grad() && !deferred[i];
      needs_some = needs_some || call.needs[i];
      call.second_call_follows = call.second_call_follows || deferred[i];
      if (deferred[i]) uses_[input.leaf.state()].pending = true;
    }
    bool defers = call.second_call_follows;
    Stash stash;
    if (needs_some || !defers) CallBackward(*node, grads_out, stash, std::move(call));
    if (defers) {
      deferred_.push_back({node, std::move(grads_out), std::move(stash)});
    } else {
      node->Release();
    }
  }

  // Runs a backward function and passes on what it gives.
  void CallBackward(const Node& node, const std::vector<Tensor>& grads_out, Stash& stash,
                    BackwardCall::Options options) {
    MF_CHECK(node.backward() != nullptr) << " " << node.name() << " ran backward already";
    std::vector<bool> needs = options.needs;
    options.targets.resize(needs.size());
    for (size_t i = 0; i < needs.size(); ++i) {
      if (needs[i]) options.targets[i] = DirectTarget(node.inputs()[i]);
    }
    BackwardCall call(node, grads_out, stash, std::move(options));
    node.backward()(call);
    for (size_t i = 0; i < needs.size(); ++i) {
      if (!needs[i]) continue;
      const Edge& input = node.inputs()[i];
      Tensor grad = std::move(call.grads()[i]);
      if (grad.defined()) Deliver(input, grad, node.sequence());
      if (call.wrote_target(static_cast<int>(i))) uses_[input.leaf.state()].written = true;
      FinishUse(input);
    }
  }

  // A leaf used exactly once takes its gradient straight from the op, without a temporary.
  LeafGrad::Target DirectTarget(const Edge& input) {
    if (!input.is_leaf() || uses_[input.leaf.state()].count != 1) return {};
    return input.leaf.grad().Begin(input.leaf.data(), options_.micro_batch);
  }

  // One edge to a leaf has been run; the last one completes the leaf at once, so that its reduction
  // can start while the rest of backward runs.
  void FinishUse(const Edge& input) {
    if (!input.is_leaf()) return;
    if (--uses_[input.leaf.state()].remaining == 0) Complete(input.leaf);
  }

  // Closes the leaf's contribution of this micro-batch: what was written, the sum of what arrived,
  // or zero.
  void Complete(const Variable& leaf) {
    if (!leaf.requires_grad()) return;
    LeafUses& uses = uses_[leaf.state()];
    if (uses.completed) return;
    uses.completed = true;
    LeafGrad& grad = leaf.grad();
    if (!uses.written && uses.parts.empty()) {
      grad.FinishWithZero(leaf.data(), options_.micro_batch);
    } else {
      if (!uses.written)
        Accumulate(TakeSum(uses.parts), grad.Begin(leaf.data(), options_.micro_batch));
      grad.Finish();
    }
    if (grad.contributions() == options_.num_micro_batches && leaf.state()->on_grad) {
      leaf.state()->on_grad();
    }
  }

  // The sum of `parts` in the order in which a kFull backward meets them.
  static Tensor TakeSum(std::vector<Part>& parts) {
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& a, const Part& b) { return a.sequence > b.sequence; });
    Tensor sum;
    for (Part& part : parts) {
      Tensor grad = std::move(part.grad);
      AddTo(sum, grad);
    }
    parts.clear();
    return sum;
  }

  static void Accumulate(const Tensor& sum, const LeafGrad::Target& target) {
    if (target.accumulate) {
      CurrentBackend().Add(target.tensor, sum, target.tensor);
    } else {
      CurrentBackend().Copy(sum, target.tensor);
    }
  }

  BackwardOptions options_;
  absl::flat_hash_map<const Node*, std::vector<Tensor>> arrived_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, EarlierIsLess>
      ready_;
  absl::flat_hash_map<const VariableState*, LeafUses> uses_;
  std::vector<Variable> touched_;  // leaves of the graph, in the order they were met
  std::vector<DeferredCall> deferred_;
};

PendingWeights::PendingWeights() = default;
PendingWeights::PendingWeights(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
PendingWeights::PendingWeights(PendingWeights&&) noexcept = default;
PendingWeights& PendingWeights::operator=(PendingWeights&&) noexcept = default;
PendingWeights::~PendingWeights() = default;

void PendingWeights::Run() {
  if (engine_ == nullptr) return;
  // Taken first, so that a failure leaves nothing to run again.
  std::unique_ptr<Engine> engine = std::move(engine_);
  engine->RunDeferred();
}

PendingWeights Backward(absl::Span<const Root> roots, const BackwardOptions& options) {
  auto engine = std::make_unique<Engine>(options);
  engine->Run(roots);
  if (!engine->HasDeferred()) return PendingWeights();
  return PendingWeights(std::move(engine));
}

PendingWeights Backward(const Variable& loss, const BackwardOptions& options) {
  MF_CHECK(loss.shape() == Shape({1})) << " loss " << loss.data().ToString();
  Tensor one = Tensor::Empty({1});
  CurrentBackend().Fill(1.0, one);
  return Backward({Root{loss, one}}, options);
}

}  // namespace meshfold
