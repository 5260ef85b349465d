// UpdateRule: how one tensor moves, given its gradient. One file in rules/ each; pure local
// arithmetic, nothing here communicates.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/registry.h"
#include "core/tensor/tensor.h"

namespace meshfold::optim {

struct RuleOptions {
  double beta1 = 0.9, beta2 = 0.95;  // Adam: decay of the moments, in [0, 1)
  double eps = 1e-8;                 // Adam: added to the root of the second moment, >= 0
  double momentum = 0.0;             // SGD, in [0, 1)
};

// Stateless but for its options: state stands beside each parameter. Thread-safe.
class UpdateRule {
 public:
  // What a rule must see of a parameter: decides whether it may run on flat shards.
  enum class Needs {
    kElementwise,    // any part of a tensor by itself
    kTensorNorms,    // norms of whole tensors besides
    kWholeMatrix,    // whole matrices
    kLocalGradient,  // the rank's own gradient, before reduction
  };

  struct Update {
    Tensor param;                    // written; f32, bf16 or f16
    Tensor master;                   // f32, written and rounded into param; undefined for f32
    Tensor grad;                     // f32, the sum over the global batch
    absl::Span<const Tensor> state;  // in state_names() order, f32, written
    Tensor grad_scale;               // f32 [1], multiplies grad (clipping); undefined: 1
    double lr = 0.0;
    double weight_decay = 0.0;  // decoupled: param -= lr * weight_decay * param; 0: none
    int64_t step = 1;           // 1 for the first update
  };

  virtual ~UpdateRule() = default;
  virtual Needs needs() const { return Needs::kElementwise; }
  // False for steps in which a rule exchanges compressed moments instead of the gradient.
  virtual bool ReducesGradient(int64_t step) const {
    (void)step;
    return true;
  }
  // One f32 tensor of the parameter's shape each, zero at the start: {"m", "v"}. Names are the
  // rule's own, without '/', and "master" is taken.
  virtual std::vector<std::string> state_names() const = 0;
  // One update on the current backend. Tensors may have any row pitch.
  virtual void Apply(const Update& update) const = 0;
};

// Makes a rule; InvalidArgument, with the value, for an option outside its range.
using UpdateRuleFactory =
    absl::StatusOr<std::unique_ptr<UpdateRule>> (*)(const RuleOptions& options);

// Rules by name. Filled before main, read-only afterwards.
Registry<UpdateRuleFactory>& UpdateRuleRegistry();

// InvalidArgument, with the value, unless 0 <= value < 1; for factories.
absl::Status CheckFraction(absl::string_view name, double value);

}  // namespace meshfold::optim
