#include "moe/count_exchange.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"

namespace meshfold::moe {
namespace {

class LocalCountExchange : public CountExchange {
 public:
  SharedCounts Share(const std::vector<int64_t>& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = routed_E};
  }
  std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) override { return load_E; }
};

class DataCountExchange : public CountExchange {
 public:
  explicit DataCountExchange(std::shared_ptr<comm::Communicator> group)
      : group_(std::move(group)) {}

  SharedCounts Share(const std::vector<int64_t>& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = SumOverRanks(routed_E)};
  }

  std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) override {
    const Tensor counts = Tensor::Contiguous({static_cast<int64_t>(load_E.size())}, DType::kI64,
                                             SystemHostAllocator());
    std::copy(load_E.begin(), load_E.end(), counts.data<int64_t>());
    std::unique_ptr<comm::Work> work = ValueOrThrow(group_->AllReduce(counts, counts));
    ThrowIfError(work->HostWait(group_->deadline()));
    return ToVector<int64_t>(counts);
  }

 private:
  const std::shared_ptr<comm::Communicator> group_;
};

}  // namespace

std::unique_ptr<CountExchange> MakeDataCountExchange(std::shared_ptr<comm::Communicator> group) {
  return std::make_unique<DataCountExchange>(std::move(group));
}

std::unique_ptr<CountExchange> MakeLocalCountExchange() {
  return std::make_unique<LocalCountExchange>();
}

}  // namespace meshfold::moe
