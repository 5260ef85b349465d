// Which rank does what: the dense and the expert arrangement of the ranks of a run, on paper.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "comm/rank_grid.h"

namespace meshfold::parallel {

// Sizes of the axes as a config gives them.
struct ParallelSizes {
  int64_t data = 0;  // 0: what the other axes leave
  int64_t tensor = 1, expert = 1, expert_tensor = 1, pipeline = 1, context = 1, ulysses = 1;
};

// Two views of the same ranks (parallel folding, Liu et al. 2025): experts have axes of their own
// within a pipeline stage, so that an expert group may run across tensor and context neighbours.
struct RankLayout {
  comm::RankGrid dense;   // pp x dp x cp x ulysses x tp
  comm::RankGrid expert;  // pp x edp x ep x etp
};

// InvalidArgument, with the sizes and the number of ranks, unless the dense sizes multiply to
// `world` and expert x expert_tensor divides the ranks of a stage. Any sizes up to 2^63 - 1.
absl::StatusOr<RankLayout> PlanRanks(const ParallelSizes& sizes, int64_t world);

}  // namespace meshfold::parallel
