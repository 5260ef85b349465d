// All experts on this rank: dispatch is a gather of rows, combine a sum of them, nothing travels.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/ops.h"
#include "core/base/check.h"
#include "moe/dispatcher.h"

namespace meshfold::moe {
namespace {

class LocalDispatch : public Dispatch {
 public:
  LocalDispatch(DispatchedRows rows, RowIndex index)
      : rows_(std::move(rows)), index_(std::move(index)) {}

  DispatchedRows DispatchFinish() override { return std::move(rows_); }
  void CombineStart(const Variable& y_RD) override { y_RD_ = y_RD; }
  Variable CombineFinish() override { return CombineTokenRows(y_RD_, index_); }

 private:
  DispatchedRows rows_;
  RowIndex index_;
  Variable y_RD_;
};

class LocalDispatcher : public Dispatcher {
 public:
  std::unique_ptr<Dispatch> DispatchStart(const DispatchInput& input) override {
    if (input.plan.num_targets() != 1) {
      ThrowInvalidArgument(absl::StrCat("[Dispatch] dispatcher 'local' cannot serve a plan for ",
                                        input.plan.num_targets(), " targets"));
    }
    const RowIndex& index = input.sorted.index;
    DispatchedRows rows{.x_RD = GatherTokenRows(input.x_TD, index),
                        .rows = GroupRows(input.plan, 0),
                        .weights_R = GatherRowWeights(input.weights_TK, index)};
    return std::make_unique<LocalDispatch>(std::move(rows), index);
  }
  int64_t num_targets() const override { return 1; }
};

absl::StatusOr<std::unique_ptr<Dispatcher>> Make(const DispatcherOptions& options) {
  if (options.group_size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Dispatcher] 'local' serves one rank, the expert group has ",
                     options.group_size(), ": take auto, all_to_all or all_gather"));
  }
  return std::make_unique<LocalDispatcher>();
}

MF_REGISTER(DispatcherRegistry(), "local", Make);

}  // namespace
}  // namespace meshfold::moe
