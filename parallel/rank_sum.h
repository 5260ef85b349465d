// Small sums over the ranks of a group, on the host: counts, losses, statistics.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"

namespace meshfold::parallel {

// Element by element the sum of `values` over the ranks, in f64 and in order of rank: equal bits on
// every rank, exact for whole numbers below 2^53. As many values on every rank. Collective; waits.
absl::StatusOr<std::vector<double>> SumOverRanks(comm::Communicator& group,
                                                 const std::vector<double>& values);

}  // namespace meshfold::parallel
