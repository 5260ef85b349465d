#include "parallel/reduction_groups.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

// Axes of more than one rank over which the gradient is partial, in the order of the grid.
std::vector<Placement> PartialAxes(const Layout& grad_layout, const RankLayout& ranks) {
  const comm::RankGrid& grid = ViewOf(grad_layout, ranks);
  std::vector<Placement> partial;
  for (const comm::MeshAxis& axis : grid.axes()) {
    for (const Placement& placement : grad_layout.placements) {
      if (placement.kind != Placement::Kind::kPartial || placement.axis != axis.name) continue;
      if (placement.parts < axis.size) partial.push_back(placement);
    }
  }
  return partial;
}

std::string NameOf(const std::vector<Placement>& partial) {
  return absl::StrJoin(partial, "_", [](std::string* out, const Placement& placement) {
    absl::StrAppend(out, placement.axis);
    if (placement.parts > 1) absl::StrAppend(out, placement.parts);
  });
}

}  // namespace

absl::StatusOr<std::vector<std::shared_ptr<comm::Communicator>>> MakeReductionGroups(
    absl::Span<Parameter* const> parameters, const Meshes& meshes) {
  std::map<std::string, std::shared_ptr<comm::Communicator>> made;
  std::vector<std::shared_ptr<comm::Communicator>> groups;
  for (const Parameter* parameter : parameters) {
    const std::vector<Placement> partial = PartialAxes(parameter->grad_layout, meshes.ranks);
    const std::string name = NameOf(partial);
    auto found = made.find(name);
    if (found == made.end()) {
      std::shared_ptr<comm::Communicator> group;
      if (!partial.empty()) {
        const std::vector<int64_t> members =
            SummingRanks(parameter->grad_layout, meshes.ranks, meshes.rank());
        MF_ASSIGN_OR_RETURN(group, meshes.dense.world()->Split(static_cast<int>(members.front()),
                                                               meshes.rank(), name));
        // Groups may differ in size where parts do not; a lone rank has nothing to add.
        if (group->size() == 1) group = nullptr;
      }
      found = made.emplace(name, std::move(group)).first;
    }
    groups.push_back(found->second);
  }
  return groups;
}

}  // namespace meshfold::parallel
