// Dispatcher: brings token copies to the ranks that compute their experts, and the results back.
// One file in moe/dispatchers a dispatcher.
//
// Dispatch and combine are each a pair of graph nodes, Start and Finish, so that other work (shared
// experts) can stand between. Each pair is its own adjoint: in backward the node of Finish issues
// the exchange and the node of Start awaits it.
//
// Every dispatcher adds a token's rows up in one order: within each rank by expert, then the ranks'
// sums ascending, in backward too. All that exchange give the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "core/autograd/variable.h"
#include "core/backend/backend.h"
#include "core/base/registry.h"
#include "moe/expert_plan.h"
#include "moe/permute.h"

namespace meshfold::moe {

// Rows that this rank computes. Groups are plan.groups[its target]; inside a group rows come by
// source, then token: the order of the tokens in the global micro-batch.
struct DispatchedRows {
  Variable x_RD;
  RowCounts rows;
  Variable weights_R;  // routing weight of each row: the expert multiplies by it
};

// One dispatch on its way: lives for one layer and micro-batch. Call DispatchFinish, CombineStart
// and CombineFinish once each, in this order. All are collective over the expert group, with zero
// rows too, and throw StatusError.
class Dispatch {
 public:
  virtual ~Dispatch() = default;
  virtual DispatchedRows DispatchFinish() = 0;
  // y_RD: expert outputs of the dispatched rows, already weighted; with expert tensor parallelism
  // this rank's summand of them.
  virtual void CombineStart(const Variable& y_RD) = 0;
  // f32 [T, D]: the sum of each token's rows; 0 for a token without rows (padding, all copies
  // dropped).
  virtual Variable CombineFinish() = 0;
};

struct DispatchInput {
  Variable x_TD;        // f32 [T, D]
  Variable weights_TK;  // f32 [T, K]
  // Both may be dropped after DispatchStart; implementations copy what they keep.
  const SortedTokens& sorted;
  const ExpertPlan& plan;
};

// Holds what outlives micro-batches (group, buffers). Several of its dispatches may be on their way
// at once, in fibers of one thread.
class Dispatcher {
 public:
  virtual ~Dispatcher() = default;
  // Collective over the expert group; may wait for small counts. StatusError.
  virtual std::unique_ptr<Dispatch> DispatchStart(const DispatchInput& input) = 0;
  // PlanInput::num_targets of the plans that it serves.
  virtual int64_t num_targets() const = 0;
};

// What a dispatcher is made from.
struct DispatcherOptions {
  int64_t num_experts = 0;
  // The expert group; null: this rank alone. Its ranks are target * expert_tensor + place within
  // the target.
  std::shared_ptr<comm::Communicator> group;
  int64_t expert_tensor = 1;  // ranks of a target

  int64_t group_size() const { return group == nullptr ? 1 : group->size(); }
};

// InvalidArgument, with the sizes, for a group that the dispatcher cannot serve.
using DispatcherFactory =
    absl::StatusOr<std::unique_ptr<Dispatcher>> (*)(const DispatcherOptions& options);
Registry<DispatcherFactory>& DispatcherRegistry();

// By the name in the options of a layer: one of the registry, or "auto": local for one rank,
// all_to_all for several. NotFound for other names; InvalidArgument, with both sizes, when
// expert_tensor does not divide the group; errors of the factory.
absl::StatusOr<std::unique_ptr<Dispatcher>> MakeDispatcher(const std::string& name,
                                                           const DispatcherOptions& options);

}  // namespace meshfold::moe
