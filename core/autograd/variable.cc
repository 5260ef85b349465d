#include "core/autograd/variable.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"

namespace meshfold {

void LeafGrad::Reset() {
  contributions_ = 0;
  zeros_ahead_.clear();
}

LeafGrad::Target LeafGrad::Begin(const Tensor& leaf, int64_t micro_batch) {
  MF_CHECK_EQ(contributions_, micro_batch) << "gradients of micro-batches must arrive in order";
  if (!tensor_.defined()) {
    MF_CHECK(leaf.defined()) << " a leaf without data needs SetBuffer";
    tensor_ = Tensor::Empty(leaf.shape(), DType::kF32);
  }
  // A gathered parameter may have been let go of: then there is no shape to compare.
  MF_CHECK(!leaf.defined() || tensor_.shape() == leaf.shape())
      << " gradient buffer " << tensor_.ToString() << " for " << leaf.ToString();
  return {tensor_, contributions_ > 0};
}

void LeafGrad::Finish() {
  ++contributions_;
  while (true) {
    auto next = std::find(zeros_ahead_.begin(), zeros_ahead_.end(), contributions_);
    if (next == zeros_ahead_.end()) return;
    zeros_ahead_.erase(next);
    ++contributions_;
  }
}

void LeafGrad::FinishWithZero(const Tensor& leaf, int64_t micro_batch) {
  if (micro_batch > contributions_) {
    zeros_ahead_.push_back(micro_batch);
    return;
  }
  Target target = Begin(leaf, micro_batch);
  if (!target.accumulate) CurrentBackend().Fill(0.0, target.tensor);
  Finish();
}

int Saved::Activation(const char* name, Tensor tensor) {
  slots_.push_back({name, Kind::kActivation, std::move(tensor), Variable(), 0});
  return static_cast<int>(slots_.size()) - 1;
}

int Saved::Parameter(const char* name, const Variable& parameter) {
  // Another op's output would keep that op alive from inside the graph.
  MF_CHECK(parameter.is_leaf()) << " '" << name << "' is not a leaf";
  slots_.push_back({name, Kind::kParameter, Tensor(), parameter, parameter.version()});
  return static_cast<int>(slots_.size()) - 1;
}

int Saved::State(const char* name, Tensor tensor) {
  slots_.push_back({name, Kind::kState, std::move(tensor), Variable(), 0});
  return static_cast<int>(slots_.size()) - 1;
}

int Saved::Input(const char* name, const Variable& variable) {
  if (!variable.defined()) return Activation(name, Tensor());
  if (variable.is_leaf() && variable.requires_grad()) return Parameter(name, variable);
  return Activation(name, variable.data());
}

Tensor Saved::Get(int slot) const {
  MF_CHECK(slot >= 0 && slot < static_cast<int>(slots_.size()))
      << " slot " << slot << " of " << slots_.size() << ": was the graph's saved state released?";
  const Slot& entry = slots_[static_cast<size_t>(slot)];
  if (entry.kind != Kind::kParameter) return entry.tensor;
  if (entry.parameter.version() != entry.version) {
    throw StatusError(absl::FailedPreconditionError(absl::StrCat(
        "[Backward] '", entry.name, "' was written (version ", entry.parameter.version(),
        ") after the forward saved it (version ", entry.version, ")")));
  }
  return entry.parameter.data();
}

Tensor BackwardCall::saved(int slot) const { return node_.saved().Get(slot); }

LeafGrad::Target BackwardCall::Target(int i, const Shape& shape) {
  if (writes_leaf(i)) {
    wrote_target_[static_cast<size_t>(i)] = true;
    return options_.targets[static_cast<size_t>(i)];
  }
  Tensor grad = Tensor::Empty(shape);
  grads_[static_cast<size_t>(i)] = grad;
  return {grad, false};
}

Edge EdgeTo(const Variable& variable) {
  if (!variable.requires_grad()) return {};
  if (variable.is_leaf()) return {nullptr, 0, variable};
  return {variable.grad_fn(), variable.output_index(), Variable()};
}

// Befriended by Node and Variable: assembles graphs and takes them apart.
class GraphBuilder {
 public:
  static std::vector<Variable> Build(const char* name, std::vector<Tensor> outputs,
                                     absl::Span<const Variable> inputs, Saved saved,
                                     BackwardFn backward, RecordOptions options) {
    // Orders nodes by creation; shared by all threads, and its values reach no result.
    static std::atomic<uint64_t> next_sequence{1};
    auto node = std::make_shared<Node>(name, next_sequence.fetch_add(1, std::memory_order_relaxed));
    node->inputs_.reserve(inputs.size());
    for (const Variable& input : inputs) node->inputs_.push_back(EdgeTo(input));
    node->deferrable_ = std::move(options.deferrable);
    node->saved_ = std::move(saved);
    node->backward_ = std::move(backward);
    std::vector<Variable> results;
    for (size_t i = 0; i < outputs.size(); ++i) {
      node->output_shapes_.push_back(outputs[i].shape());
      Variable result(std::move(outputs[i]));
      result.state_->requires_grad = true;
      result.state_->grad_fn = node;
      result.state_->output_index = static_cast<int>(i);
      results.push_back(std::move(result));
    }
    return results;
  }

  // Breaks the chain below `inputs` in a loop: each node that this was the last holder of gives up
  // its inputs before it dies, so no destructor recurses more than one level.
  static void Dismantle(std::vector<Edge>& inputs) {
    std::vector<std::shared_ptr<Node>> pending;
    MoveNodes(inputs, pending);
    while (!pending.empty()) {
      std::shared_ptr<Node> node = std::move(pending.back());
      pending.pop_back();
      if (node.use_count() == 1) MoveNodes(node->inputs_, pending);
    }
  }

 private:
  static void MoveNodes(std::vector<Edge>& inputs, std::vector<std::shared_ptr<Node>>& pending) {
    for (Edge& input : inputs) {
      if (input.node != nullptr) pending.push_back(std::move(input.node));
    }
    inputs.clear();
  }
};

Node::~Node() { GraphBuilder::Dismantle(inputs_); }

void Node::Release() {
  saved_.Release();
  backward_ = nullptr;
  deferrable_.clear();
  GraphBuilder::Dismantle(inputs_);
}

bool ShouldRecord(absl::Span<const Variable> inputs) {
  if (CurrentContext().grad_mode != GradMode::kRecord) return false;
  for (const Variable& input : inputs) {
    if (input.requires_grad()) return true;
  }
  return false;
}

bool ShouldRecord(std::initializer_list<Variable> inputs) {
  return ShouldRecord(absl::MakeConstSpan(inputs.begin(), inputs.size()));
}

std::vector<Variable> Record(const char* name, std::vector<Tensor> outputs,
                             absl::Span<const Variable> inputs, Saved saved, BackwardFn backward,
                             RecordOptions options) {
  return GraphBuilder::Build(name, std::move(outputs), inputs, std::move(saved),
                             std::move(backward), std::move(options));
}

}  // namespace meshfold
