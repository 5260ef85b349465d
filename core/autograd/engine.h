// Backward: walks the graph from its roots and sums gradients into leaves.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/autograd/variable.h"

namespace meshfold {

// Where backward starts: a variable and the gradient that arrives there (f32, same shape).
struct Root {
  Variable variable;
  Tensor grad;
};

enum class BackwardMode {
  kFull,       // all gradients
  kInputOnly,  // gradients of deferrable leaves (weights of linear, experts, loss head) are left to
               // PendingWeights: the W action of zero-bubble pipeline schedules
};

struct BackwardOptions {
  BackwardMode mode = BackwardMode::kFull;
  // This graph is micro-batch `micro_batch` of `num_micro_batches` of the step. Leaves check that
  // contributions come in order; on_grad fires when the last one is complete.
  int64_t micro_batch = 0;
  int64_t num_micro_batches = 1;
  // Every leaf that trains. One that this graph did not reach is credited a zero gradient, so that
  // each leaf gets exactly one contribution a micro-batch whatever the data did. Leaves of
  // the graph that are not listed are credited too.
  std::vector<Variable> leaves;
};

class Engine;

// Weight gradients that a kInputOnly backward left open. Communicates nothing when it runs.
class PendingWeights {
 public:
  PendingWeights();
  explicit PendingWeights(std::unique_ptr<Engine> engine);
  PendingWeights(PendingWeights&&) noexcept;
  PendingWeights& operator=(PendingWeights&&) noexcept;
  ~PendingWeights();

  // Computes them, in the order backward met them, and completes the contributions of their leaves.
  // Once only; nothing happens when nothing was deferred. The bits are those of a kFull backward.
  void Run();

  // True while Run has something to do.
  bool open() const { return engine_ != nullptr; }

 private:
  std::unique_ptr<Engine> engine_;  // null when nothing is open
};

// Runs backward from `roots` in the current context and releases the graph. Nodes run in reverse
// creation order; gradients of a variable used several times are added in that order, those of a
// leaf used several times are summed first and added to the leaf once. A leaf is complete, and
// on_grad fires, as soon as its last use has run. Throws what backward functions throw
// (StatusError); the graph is then unusable, and the step's gradients with it.
PendingWeights Backward(absl::Span<const Root> roots, const BackwardOptions& options);

// The scalar case: loss is f32 [1], its gradient 1.
PendingWeights Backward(const Variable& loss, const BackwardOptions& options);

}  // namespace meshfold
