// The groups over which gradients add up, by parameter.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "core/nn/module.h"
#include "parallel/axis.h"

namespace meshfold::parallel {

// For each of `parameters` the communicator of the ranks that its grad_layout says hold summands of
// its gradient (SummingRanks); null where this rank's is whole. Parameters with the same
// grad_layout share one, named after its axes ("dp", "dp_tp", "edp"). Collective over the world:
// all ranks pass the same parameters. Blocks for at most the world's deadline.
absl::StatusOr<std::vector<std::shared_ptr<comm::Communicator>>> MakeReductionGroups(
    absl::Span<Parameter* const> parameters, const Meshes& meshes);

}  // namespace meshfold::parallel
