// Variable: a tensor in the autograd graph; Node: one recorded op; Saved: what its backward reads.
//
// The graph is built as ops run and torn down as backward runs: a node's saved slots are released
// as soon as its backward has been called for the last time. Backward functions capture no tensor
// and no context, only shapes, plain numbers and slot numbers; all tensors they read come from
// Saved, so that recompute can refill, and offload can move, what a node holds. Edges between nodes
// hold no activation either: what no op saved is freed as soon as the forward has used it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/check.h"
#include "core/tensor/tensor.h"

namespace meshfold {

class Node;

// The gradient of one leaf, summed over the micro-batches of a step.
//
// Each micro-batch contributes exactly once, in order: the first writes, later ones add. The buffer
// is kept from step to step, so steady state allocates nothing.
class LeafGrad {
 public:
  // The buffer, defined after the first contribution: f32, shape of the leaf, any row pitch.
  const Tensor& tensor() const { return tensor_; }
  // Makes `buffer` (f32, shape of the leaf) the place that gradients are summed in: buckets own it.
  void SetBuffer(Tensor buffer) { tensor_ = std::move(buffer); }
  int64_t contributions() const { return contributions_; }

  // Starts a step: the next contribution is micro-batch 0 and overwrites.
  void Reset();

  // For the engine. Destination of micro-batch `micro_batch`, allocated like `leaf` when needed;
  // accumulate tells whether to add. Check failure when micro-batches come out of order.
  struct Target {
    Tensor tensor;
    bool accumulate = false;
  };
  Target Begin(const Tensor& leaf, int64_t micro_batch);
  // The contribution of the micro-batch whose turn it is has been written.
  void Finish();
  // `micro_batch` contributes nothing. May run ahead of earlier micro-batches whose weight
  // gradients are still pending; it counts once they are in.
  void FinishWithZero(const Tensor& leaf, int64_t micro_batch);

 private:
  Tensor tensor_;
  int64_t contributions_ = 0;
  std::vector<int64_t> zeros_ahead_;  // micro-batches after contributions_ known to be zero
};

// Shared state of a variable.
struct VariableState {
  Tensor data;
  bool requires_grad = false;
  std::shared_ptr<Node> grad_fn;  // null for leaves
  int output_index = 0;           // which output of grad_fn
  uint64_t version = 0;           // bumped by in-place writes to a parameter
  LeafGrad grad;                  // leaves only
  std::function<void()> on_grad;  // leaves only: the step's last contribution has been added
};

// A handle; copies share state. Ops in core/autograd/ops.h take and return Variables.
class Variable {
 public:
  Variable() = default;
  // A constant (no gradient).
  explicit Variable(Tensor data) : state_(std::make_shared<VariableState>()) {
    state_->data = std::move(data);
  }
  // A leaf whose gradient is wanted.
  static Variable Leaf(Tensor data) {
    Variable variable(std::move(data));
    variable.state_->requires_grad = true;
    return variable;
  }

  bool defined() const { return state_ != nullptr; }
  const Tensor& data() const {
    MF_CHECK(defined()) << " undefined Variable";
    return state_->data;
  }
  const Shape& shape() const { return data().shape(); }
  bool requires_grad() const { return state_ != nullptr && state_->requires_grad; }
  // Leaves only: freezes or thaws a parameter for graphs recorded from now on.
  void set_requires_grad(bool value) const { state_->requires_grad = value; }
  bool is_leaf() const { return state_->grad_fn == nullptr; }
  LeafGrad& grad() const { return state_->grad; }
  const std::shared_ptr<Node>& grad_fn() const { return state_->grad_fn; }
  int output_index() const { return state_->output_index; }
  // Replaces a leaf's values (loading, an update); counts as a write.
  void SetData(Tensor data) const {
    state_->data = std::move(data);
    ++state_->version;
  }
  // Puts the same values elsewhere, or lets go of them until they are needed again (gathered
  // shards); not a write, so a backward that saved the leaf by reference goes on.
  void MoveData(Tensor data) const { state_->data = std::move(data); }
  // Call after writing a parameter in place: a backward that saved it by reference then fails its
  // version check instead of using the wrong weights.
  void BumpVersion() const { ++state_->version; }
  uint64_t version() const { return state_->version; }
  void set_on_grad(std::function<void()> callback) const { state_->on_grad = std::move(callback); }

  VariableState* state() const { return state_.get(); }

 private:
  friend class GraphBuilder;
  std::shared_ptr<VariableState> state_;
};

// Numbered slots that a node's backward reads.
class Saved {
 public:
  enum class Kind {
    kActivation,  // may be dropped, moved away and refilled by recompute
    kParameter,   // re-read in backward, with a version check
    kState,       // routing ids, counts, plans: kept, and replayed by recompute
  };
  struct Slot {
    const char* name;
    Kind kind;
    Tensor tensor;       // kActivation, kState
    Variable parameter;  // kParameter
    uint64_t version = 0;
  };

  // Each returns the slot's number. An undefined tensor is a legal activation. A parameter is a
  // leaf.
  int Activation(const char* name, Tensor tensor);
  int Parameter(const char* name, const Variable& parameter);
  int State(const char* name, Tensor tensor);
  // Saves `variable` by reference when it is a leaf that requires a gradient, else by value;
  // nothing when it is undefined.
  int Input(const char* name, const Variable& variable);

  // The slot's tensor; a check failure when it was released, StatusError (FailedPrecondition) when
  // a parameter was written since it was saved.
  Tensor Get(int slot) const;
  void Release() { slots_.clear(); }
  absl::Span<Slot> slots() { return absl::MakeSpan(slots_); }

 private:
  std::vector<Slot> slots_;
};

// What the first of two calls of a backward function leaves for the second.
using Stash = std::vector<Tensor>;

// One call of a backward function: which gradients are asked for, and where they go.
class BackwardCall {
 public:
  // For the engine: the pieces of a call. `targets` and `needs` have one entry an input.
  struct Options {
    std::vector<LeafGrad::Target> targets;  // defined where the op may write into a leaf's gradient
    std::vector<bool> needs;
    bool second_call_follows = false;
  };
  BackwardCall(const Node& node, absl::Span<const Tensor> grads_out, Stash& stash, Options options)
      : node_(node),
        grads_out_(grads_out),
        stash_(stash),
        options_(std::move(options)),
        grads_(options_.needs.size()),
        wrote_target_(options_.needs.size(), false) {}

  // Gradient of output `i`; undefined when nothing flowed back to it (treat as zero). Never
  // undefined for an op with one output.
  const Tensor& grad_out(int i = 0) const { return grads_out_[static_cast<size_t>(i)]; }
  // Saved tensor in `slot`.
  Tensor saved(int slot) const;
  // Whether the gradient of input `i` is asked for in this call.
  bool needs(int i) const { return options_.needs[static_cast<size_t>(i)]; }
  // Whether the deferrable gradients are asked for in another call, which will see this stash.
  bool second_call_follows() const { return options_.second_call_follows; }
  Stash& stash() { return stash_; }

  // Whether Target(i) is a leaf's accumulated gradient and not a new tensor.
  bool writes_leaf(int i) const {
    return options_.targets[static_cast<size_t>(i)].tensor.defined();
  }
  // Where the gradient of input `i` should be written: either straight into a leaf's accumulated
  // gradient (then heed `accumulate`), or into a new tensor of `shape`. Counts as setting it.
  LeafGrad::Target Target(int i, const Shape& shape);
  // Gives the gradient of input `i` as a finished tensor (may alias grad_out or a saved tensor).
  void Set(int i, Tensor grad) { grads_[static_cast<size_t>(i)] = std::move(grad); }

  // For the engine: gradients given (undefined where none or written straight to the leaf's
  // target), and whether the leaf's target was taken.
  std::vector<Tensor>& grads() { return grads_; }
  bool wrote_target(int i) const { return wrote_target_[static_cast<size_t>(i)]; }

 private:
  const Node& node_;
  absl::Span<const Tensor> grads_out_;
  Stash& stash_;
  Options options_;
  std::vector<Tensor> grads_;
  std::vector<bool> wrote_target_;
};

using BackwardFn = std::function<void(BackwardCall&)>;

// One input of a recorded op as backward sees it: where its gradient goes. Neither `node` nor
// `leaf` is set when the input needs no gradient.
struct Edge {
  std::shared_ptr<Node> node;  // the op that made the input
  int output_index = 0;        // which of its outputs
  Variable leaf;               // the leaf itself

  bool needs_grad() const { return node != nullptr || leaf.defined(); }
  bool is_leaf() const { return leaf.defined(); }
};

// The edge that a gradient of `variable` takes.
Edge EdgeTo(const Variable& variable);

// One recorded op.
class Node {
 public:
  Node(const char* name, uint64_t sequence) : name_(name), sequence_(sequence) {}
  // Releases long chains of nodes without recursion.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  // Position in creation order; backward runs nodes in reverse.
  uint64_t sequence() const { return sequence_; }
  const std::vector<Edge>& inputs() const { return inputs_; }
  const std::vector<Shape>& output_shapes() const { return output_shapes_; }
  // Inputs whose gradients may be left for a later call (weights of linear ops).
  const std::vector<int>& deferrable() const { return deferrable_; }
  Saved& saved() { return saved_; }
  const Saved& saved() const { return saved_; }
  const BackwardFn& backward() const { return backward_; }
  // After the last backward: frees saved tensors, inputs and the function.
  void Release();

 private:
  friend class GraphBuilder;
  const char* name_;
  uint64_t sequence_;
  std::vector<Edge> inputs_;
  std::vector<Shape> output_shapes_;
  std::vector<int> deferrable_;
  Saved saved_;
  BackwardFn backward_;
};

// True when an op on `inputs` has to be recorded: gradients are on in the current context and some
// input requires one. Ops save nothing otherwise.
bool ShouldRecord(std::initializer_list<Variable> inputs);
bool ShouldRecord(absl::Span<const Variable> inputs);

struct RecordOptions {
  // Inputs whose gradients a kInputOnly backward leaves for later; the backward function must then
  // accept two calls with disjoint needs, the second communicating nothing.
  std::vector<int> deferrable;
};

// The only way an op enters the graph: wraps `outputs` as Variables that remember where gradients
// of `inputs` go and how to compute them. Undefined Variables are legal inputs (optional
// arguments). `name` is a literal.
std::vector<Variable> Record(const char* name, std::vector<Tensor> outputs,
                             absl::Span<const Variable> inputs, Saved saved, BackwardFn backward,
                             RecordOptions options = {});

}  // namespace meshfold
