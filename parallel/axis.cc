#include "parallel/axis.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {

absl::StatusOr<Meshes> Meshes::Create(std::shared_ptr<comm::Communicator> world,
                                      const RankLayout& ranks) {
  MF_ASSIGN_OR_RETURN(comm::DeviceMesh dense,
                      comm::DeviceMesh::Create(std::move(world), ranks.dense,
                                               {{"dp_tp", {"dp", "cp", "ulysses", "tp"}}}));
  MF_ASSIGN_OR_RETURN(comm::DeviceMesh expert,
                      dense.View(ranks.expert, {{"ep_etp", {"ep", "etp"}}}));
  return Meshes{ranks, std::move(dense), std::move(expert)};
}

Registry<Axis>& AxisRegistry() {
  static auto* registry = new Registry<Axis>("axis");
  return *registry;
}

absl::Status ApplyAxes(const AxisInput& input) {
  std::vector<Axis> axes;
  for (const std::string& name : AxisRegistry().Names()) {
    axes.push_back(AxisRegistry().Find(name).value());
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return a.order < b.order; });
  for (const Axis& axis : axes) MF_RETURN_IF_ERROR(axis.apply(input));
  absl::Status status;
  input.layers.VisitParameters([&](Parameter& parameter) {
    if (!status.ok()) return;
    absl::StatusOr<Box> part =
        LocalBox(parameter.shape, parameter.layout, input.meshes.ranks, input.meshes.rank());
    if (part.ok()) {
      parameter.part = *std::move(part);
    } else {
      status = absl::InvalidArgumentError(
          absl::StrCat("parameter '", parameter.name, "': ", part.status().message()));
    }
  });
  return status;
}

}  // namespace meshfold::parallel
