// A token goes once to every rank that computes any of its experts, however many it has there
// (DeepSeek-AI 2024, "DeepEP"); a rank sends back the sum of what its experts made of it.
//
// Bytes, forward: with n_rs the tokens of rank r that need rank s, r sends each s != r
// n_rs (D + K) f32 and n_rs K i32, and gets n_rs D f32 back; backward n_rs D f32 there and
// n_rs (D + K) f32 back. Counts cost one i64 a pair of ranks. Nothing is looked up twice: backward
// uses the tables of the forward.
#include <utility>

#include "comm/self_communicator.h"
#include "core/autograd/ops.h"
#include "moe/dispatch_tables.h"
#include "moe/dispatcher.h"
#include "parallel/collective_ops.h"

namespace meshfold::moe {
namespace {

using parallel::Group;
using parallel::RowExchange;
using parallel::RowSplits;

class AllToAllDispatch : public Dispatch {
 public:
  // `rows`: what this rank will compute.
  AllToAllDispatch(const DispatchInput& input, SendTable table, RowCounts rows, const Group& group)
      : group_(group), sent_(std::move(table.index)), rows_(std::move(rows)) {
    splits_.receive = parallel::ExchangeCounts(table.rows_M, group_);
    splits_.send = std::move(table.rows_M);
    x_ = RowExchange::Start(GatherTokenRows(input.x_TD, sent_), splits_, group_);
    weights_ = RowExchange::Start(GatherTokenRows(input.weights_TK, sent_), splits_, group_);
    groups_ = RowExchange::Start(Variable(std::move(table.groups_SK)), splits_, group_);
  }

  DispatchedRows DispatchFinish() override {
    // In the order of Start, so that backward issues in one order as well.
    const Variable x_ND = x_.Finish(), weights_NK = weights_.Finish();
    received_ = SortByGroup(groups_.Finish().data(), rows_);
    return {.x_RD = GatherTokenRows(x_ND, received_),
            .rows = rows_,
            .weights_R = GatherRowWeights(weights_NK, received_)};
  }

  void CombineStart(const Variable& y_RD) override {
    const RowSplits back{.send = splits_.receive, .receive = splits_.send};
    y_ = RowExchange::Start(CombineTokenRows(y_RD, received_), back, group_);
  }

  Variable CombineFinish() override { return CombineTokenRows(y_.Finish(), sent_); }

 private:
  const Group group_;
  const RowIndex sent_;  // tokens here -> rows of the exchange
  const RowCounts rows_;
  RowSplits splits_;
  RowExchange x_, weights_, groups_;
  RowIndex received_;  // tokens received -> rows of the experts
  RowExchange y_;
};

class AllToAllDispatcher : public Dispatcher {
 public:
  AllToAllDispatcher(Group group, int64_t expert_tensor)
      : group_(std::move(group)), expert_tensor_(expert_tensor) {}

  std::unique_ptr<Dispatch> DispatchStart(const DispatchInput& input) override {
    const SlotTargets slots = TargetsOf(input.sorted, input.plan, group_->rank());
    return std::make_unique<AllToAllDispatch>(
        input, MakeSendTable(slots, num_targets(), group_->size()),
        GroupRows(input.plan, group_->rank() / expert_tensor_), group_);
  }
  int64_t num_targets() const override { return group_->size() / expert_tensor_; }

 private:
  const Group group_;
  const int64_t expert_tensor_;
};

absl::StatusOr<std::unique_ptr<Dispatcher>> Make(const DispatcherOptions& options) {
  Group group = options.group;
  if (group == nullptr) group = std::make_shared<comm::SelfCommunicator>("ep_etp");
  return std::make_unique<AllToAllDispatcher>(std::move(group), options.expert_tensor);
}

MF_REGISTER(DispatcherRegistry(), "all_to_all", Make);

}  // namespace
}  // namespace meshfold::moe
