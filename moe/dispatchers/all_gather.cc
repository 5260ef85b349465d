// Every rank gets all tokens of the group and computes its own experts' rows of them; results are
// reduce-scattered. More bytes than all_to_all where tokens need few of the ranks, but regular:
// only the number of padding rows depends on the data.
//
// Bytes, with M the largest number of tokens of a rank: forward each rank sends every other one
// M (D + K) f32 and M K i32, and M D f32 back; backward the same but for the i32.
#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/self_communicator.h"
#include "core/autograd/ops.h"
#include "moe/dispatch_tables.h"
#include "moe/dispatcher.h"
#include "moe/host_copy.h"
#include "parallel/collective_ops.h"

namespace meshfold::moe {
namespace {

using parallel::Group;
using parallel::RowExchange;

// T tokens at the start of M rows, the rest zero; back again by CombineTokenRows.
RowIndex PadTo(int64_t num_rows, int64_t num_tokens) {
  std::vector<int32_t> row_to_slot(static_cast<size_t>(num_rows), -1);
  std::iota(row_to_slot.begin(), row_to_slot.begin() + num_tokens, 0);
  const std::vector<int32_t> token_rows(row_to_slot.begin(), row_to_slot.begin() + num_tokens);
  return {.row_to_slot = Upload(row_to_slot, {num_rows}),
          .token_rows = Upload(token_rows, {num_tokens, 1})};
}

// i32 [members M, K]: for every member, the group there of each slot, -1 elsewhere.
Tensor GroupsForAll(const SlotTargets& slots, int64_t num_rows, int64_t expert_tensor,
                    int64_t num_members) {
  const int64_t top_k = slots.top_k;
  std::vector<int32_t> groups(static_cast<size_t>(num_members * num_rows * top_k), -1);
  for (int64_t member = 0; member < num_members; ++member) {
    for (size_t slot = 0; slot < slots.target_TK.size(); ++slot) {
      if (slots.target_TK[slot] != member / expert_tensor) continue;
      groups[static_cast<size_t>(member * num_rows * top_k) + slot] = slots.group_TK[slot];
    }
  }
  return Upload(groups, {num_members * num_rows, top_k});
}

class AllGatherDispatch : public Dispatch {
 public:
  AllGatherDispatch(const DispatchInput& input, RowCounts rows, Tensor groups, RowIndex padding,
                    const Group& group)
      : group_(group), padding_(std::move(padding)), rows_(std::move(rows)) {
    const int64_t num_rows = padding_.row_to_slot.numel();
    const std::vector<int64_t> all(static_cast<size_t>(group_->size()), num_rows);
    groups_ =
        RowExchange::Start(Variable(std::move(groups)), {.send = all, .receive = all}, group_);
    x_ND_ = parallel::GatherRows(GatherTokenRows(input.x_TD, padding_), num_rows * group_->size(),
                                 group_);
    weights_NK_ = parallel::GatherRows(GatherTokenRows(input.weights_TK, padding_),
                                       num_rows * group_->size(), group_);
  }

  DispatchedRows DispatchFinish() override {
    received_ = SortByGroup(groups_.Finish().data(), rows_);
    const Variable x_ND = std::exchange(x_ND_, Variable());
    const Variable weights_NK = std::exchange(weights_NK_, Variable());
    return {.x_RD = GatherTokenRows(x_ND, received_),
            .rows = rows_,
            .weights_R = GatherRowWeights(weights_NK, received_)};
  }

  void CombineStart(const Variable& y_RD) override {
    y_MD_ = parallel::ReduceScatterRows(CombineTokenRows(y_RD, received_), group_);
  }
  Variable CombineFinish() override { return CombineTokenRows(y_MD_, padding_); }

 private:
  const Group group_;
  const RowIndex padding_;  // tokens here -> M rows
  const RowCounts rows_;
  RowExchange groups_;
  Variable x_ND_, weights_NK_;  // of all tokens
  RowIndex received_;           // tokens of all ranks -> rows of the experts here
  Variable y_MD_;
};

class AllGatherDispatcher : public Dispatcher {
 public:
  AllGatherDispatcher(Group group, int64_t expert_tensor)
      : group_(std::move(group)), expert_tensor_(expert_tensor) {}

  std::unique_ptr<Dispatch> DispatchStart(const DispatchInput& input) override {
    const SlotTargets slots = TargetsOf(input.sorted, input.plan, group_->rank());
    const std::vector<int64_t> own(static_cast<size_t>(group_->size()), slots.num_tokens);
    const std::vector<int64_t> tokens = parallel::ExchangeCounts(own, group_);
    const int64_t num_rows = *std::max_element(tokens.begin(), tokens.end());
    return std::make_unique<AllGatherDispatch>(
        input, GroupRows(input.plan, group_->rank() / expert_tensor_),
        GroupsForAll(slots, num_rows, expert_tensor_, group_->size()),
        PadTo(num_rows, slots.num_tokens), group_);
  }
  int64_t num_targets() const override { return group_->size() / expert_tensor_; }

 private:
  const Group group_;
  const int64_t expert_tensor_;
};

absl::StatusOr<std::unique_ptr<Dispatcher>> Make(const DispatcherOptions& options) {
  Group group = options.group;
  if (group == nullptr) group = std::make_shared<comm::SelfCommunicator>("ep_etp");
  return std::make_unique<AllGatherDispatcher>(std::move(group), options.expert_tensor);
}

MF_REGISTER(DispatcherRegistry(), "all_gather", Make);

}  // namespace
}  // namespace meshfold::moe
