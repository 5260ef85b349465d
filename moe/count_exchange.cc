#include "moe/count_exchange.h"

#include <algorithm>
#include <utility>

#include "comm/self_communicator.h"
#include "core/backend/completion.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"

namespace meshfold::moe {
namespace {

using Counts = std::vector<int64_t>;

Tensor ToHost(const Counts& counts) {
  const Tensor out =
      Tensor::Contiguous({static_cast<int64_t>(counts.size())}, DType::kI64, SystemHostAllocator());
  std::copy(counts.begin(), counts.end(), out.data<int64_t>());
  return out;
}

Counts SumOver(const Counts& own, comm::Communicator& group) {
  const Tensor counts = ToHost(own);
  AwaitOnHost(*ValueOrThrow(group.AllReduce(counts, counts)));
  return ToVector<int64_t>(counts);
}

// [ranks of the group][own.size()]
std::vector<Counts> GatherOver(const Counts& own, comm::Communicator& group) {
  const Tensor all = Tensor::Contiguous({group.size(), static_cast<int64_t>(own.size())},
                                        DType::kI64, SystemHostAllocator());
  AwaitOnHost(*ValueOrThrow(group.AllGather(ToHost(own), all)));
  std::vector<Counts> counts;
  for (int64_t r = 0; r < group.size(); ++r) counts.push_back(ToVector<int64_t>(all.Select(r)));
  return counts;
}

Counts Sum(const std::vector<Counts>& counts_RE) {
  Counts sum = counts_RE[0];
  for (size_t r = 1; r < counts_RE.size(); ++r) {
    for (size_t e = 0; e < sum.size(); ++e) sum[e] += counts_RE[r][e];
  }
  return sum;
}

class LocalCountExchange : public CountExchange {
 public:
  SharedCounts Share(const Counts& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = routed_E, .ranks_RE = {routed_E}};
  }
  Counts SumOverRanks(Counts load_E) override { return load_E; }
};

class GroupCountExchange : public CountExchange {
 public:
  explicit GroupCountExchange(const CountGroups& groups) : groups_(groups) {}

  SharedCounts Share(const Counts& routed_E) override {
    comm::Communicator &expert = *groups_.expert, &micro_batch = *groups_.micro_batch;
    SharedCounts counts;
    if (groups_.ranks) {
      counts.rank = micro_batch.rank();
      counts.group_begin = micro_batch.rank() - expert.rank();
      counts.ranks_RE = GatherOver(routed_E, micro_batch);
      const auto begin = counts.ranks_RE.begin() + counts.group_begin;
      counts.group_RE.assign(begin, begin + expert.size());
      counts.micro_batch_E = Sum(counts.ranks_RE);
      return counts;
    }
    counts.group_RE = GatherOver(routed_E, expert);
    if (!groups_.sums) return counts;
    const bool same = expert.size() == micro_batch.size();
    counts.micro_batch_E = same ? Sum(counts.group_RE) : SumOver(routed_E, micro_batch);
    return counts;
  }

  Counts SumOverRanks(Counts load_E) override { return SumOver(load_E, *groups_.micro_batch); }

 private:
  const CountGroups groups_;
};

}  // namespace

std::unique_ptr<CountExchange> MakeLocalCountExchange() {
  return std::make_unique<LocalCountExchange>();
}

std::unique_ptr<CountExchange> MakeGroupCountExchange(const CountGroups& groups) {
  return std::make_unique<GroupCountExchange>(groups);
}

std::unique_ptr<CountExchange> MakeDataCountExchange(std::shared_ptr<comm::Communicator> group) {
  return MakeGroupCountExchange({.expert = std::make_shared<comm::SelfCommunicator>("ep_etp"),
                                 .micro_batch = std::move(group),
                                 .sums = true});
}

}  // namespace meshfold::moe
