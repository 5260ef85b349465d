// What the ranks that share a micro-batch tell each other about its routing: the seam through which
// balance loss, bias update and planners see all ranks. The expert axis installs one that
// communicates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace meshfold::moe {

struct SharedCounts {
  // [ranks of the expert group][E] rows of each expert on each rank.
  std::vector<std::vector<int64_t>> group_RE;
  // [E] rows of each expert over all ranks that share the micro-batch.
  std::vector<int64_t> micro_batch_E;
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

// Ranks that each route tokens of their own to experts of their own, all of them, and share the
// batch: data parallelism. Both calls are one all-reduce over `group`.
std::unique_ptr<CountExchange> MakeDataCountExchange(std::shared_ptr<comm::Communicator> group);

}  // namespace meshfold::moe
