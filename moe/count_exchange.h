// What the ranks that share a micro-batch tell each other about its routing: the seam through which
// balance loss, bias update, capacity and planners see all ranks. The expert axis installs one that
// communicates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace meshfold::moe {

// Rows are those before drops.
struct SharedCounts {
  // [ranks of the expert group][E] rows of each expert on each rank.
  std::vector<std::vector<int64_t>> group_RE;
  // [E] rows of each expert over all ranks that share the micro-batch; may be empty where the
  // options ask for no balance loss.
  std::vector<int64_t> micro_batch_E;
  // Where the options ask for a capacity: [ranks that share the micro-batch][E], in the order of
  // their tokens. This one is number `rank`, the expert group is the run that starts at
  // `group_begin`. Else empty.
  std::vector<std::vector<int64_t>> ranks_RE;
  int64_t rank = 0, group_begin = 0;
};

class CountExchange {
 public:
  virtual ~CountExchange() = default;
  // Once a layer and micro-batch, right after the host read. routed_E: rows of this rank before
  // drops. Collective over the ranks that share the micro-batch; throws StatusError.
  virtual SharedCounts Share(const std::vector<int64_t>& routed_E) = 0;
  // Once a layer and step: the sum of load_E over the ranks that share the batch. Collective over
  // them; throws StatusError.
  virtual std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) = 0;
};

// One rank: its own counts are all counts.
std::unique_ptr<CountExchange> MakeLocalCountExchange();

// Whom the ranks ask, and for what: equal on all of them, so that all issue the same operations.
struct CountGroups {
  std::shared_ptr<comm::Communicator> expert;       // the expert group: consecutive ranks of ...
  std::shared_ptr<comm::Communicator> micro_batch;  // ... all that share the micro-batch
  bool sums = false;                                // micro_batch_E
  bool ranks = false;                               // ranks_RE, and micro_batch_E with it
};
// Share is an all-gather over one of the groups, and an all-reduce over the other where `sums`
// alone ask for it and they differ; SumOverRanks is an all-reduce over `micro_batch`.
std::unique_ptr<CountExchange> MakeGroupCountExchange(const CountGroups& groups);

// Ranks that each route tokens of their own to experts of their own, all of them, and share the
// batch: data parallelism.
std::unique_ptr<CountExchange> MakeDataCountExchange(std::shared_ptr<comm::Communicator> group);

}  // namespace meshfold::moe
