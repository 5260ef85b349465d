#include "comm/device_mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/self_communicator.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {

absl::StatusOr<DeviceMesh> DeviceMesh::Create(std::shared_ptr<Communicator> world,
                                              const RankGrid& grid,
                                              absl::Span<const MeshGroup> combined) {
  if (grid.world() != world->size()) {
    return absl::InvalidArgumentError(absl::StrCat("mesh: ", grid.ToString(), " is for ",
                                                   grid.world(), " ranks, the world has ",
                                                   world->size()));
  }
  DeviceMesh mesh(std::move(world), grid);
  MF_RETURN_IF_ERROR(mesh.MakeGroups(combined, {}));
  return mesh;
}

absl::StatusOr<DeviceMesh> DeviceMesh::View(const RankGrid& grid,
                                            absl::Span<const MeshGroup> combined) const {
  if (grid.world() != grid_.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("mesh: ", grid.ToString(), " and ", grid_.ToString(), " differ in ranks"));
  }
  DeviceMesh mesh(world_, grid);
  MF_RETURN_IF_ERROR(mesh.MakeGroups(combined, made_));
  return mesh;
}

absl::Status DeviceMesh::MakeGroups(absl::Span<const MeshGroup> combined,
                                    const std::vector<Made>& existing) {
  std::vector<MeshGroup> wanted;
  for (const MeshAxis& axis : grid_.axes()) wanted.push_back({axis.name, {axis.name}});
  wanted.insert(wanted.end(), combined.begin(), combined.end());
  for (const MeshGroup& group : wanted) {
    for (const Made& made : made_) {
      if (made.group.name == group.name) {
        return absl::InvalidArgumentError(absl::StrCat("mesh: two groups are named ", group.name));
      }
    }
    MF_ASSIGN_OR_RETURN(Made made, MakeGroup(group, existing));
    made_.push_back(std::move(made));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMesh::Made> DeviceMesh::MakeGroup(const MeshGroup& wanted,
                                                       const std::vector<Made>& existing) const {
  Made made;
  made.group.name = wanted.name;
  for (int64_t rank : grid_.GroupOf(rank(), wanted.axes)) {
    made.group.ranks.push_back(static_cast<int>(rank));
  }
  made.cut.reserve(static_cast<size_t>(grid_.world()));
  for (int64_t rank = 0; rank < grid_.world(); ++rank) {
    made.cut.push_back(grid_.GroupIndex(rank, wanted.axes));
  }
  if (made.group.ranks.size() == 1) {
    made.group.communicator = std::make_shared<SelfCommunicator>(wanted.name);
    return made;
  }
  for (const Made& other : existing) {
    // The cut of the whole world, not only this rank's group: all ranks decide alike.
    if (other.cut != made.cut) continue;
    made.group.communicator = other.group.communicator;
    return made;
  }
  const int64_t color = grid_.GroupIndex(rank(), wanted.axes);
  MF_ASSIGN_OR_RETURN(made.group.communicator,
                      world_->Split(static_cast<int>(color), rank(), wanted.name));
  return made;
}

const ProcessGroup& DeviceMesh::group(absl::string_view name) const {
  for (const Made& made : made_) {
    if (made.group.name == name) return made.group;
  }
  MF_CHECK(false) << " no group '" << std::string(name) << "' in mesh " << grid_.ToString();
  return made_.front().group;
}

std::vector<std::string> DeviceMesh::names() const {
  std::vector<std::string> names;
  for (const Made& made : made_) names.push_back(made.group.name);
  return names;
}

}  // namespace meshfold::comm
