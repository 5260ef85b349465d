// DeviceMesh: the process groups of a grid of ranks, made over a world of communicators.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "comm/process_group.h"
#include "comm/rank_grid.h"

namespace meshfold::comm {

// A group over several axes at once: {"dp_cp", {"dp", "cp"}}.
struct MeshGroup {
  std::string name;
  std::vector<std::string> axes;
};

// One arrangement of a world's ranks with a group for each of its axes, of the axis's name, and for
// each combination asked for. Groups of one rank have a SelfCommunicator, so that no code asks
// whether an axis is in use. Copies share the groups.
class DeviceMesh {
 public:
  // Collective over `world`, whose size is the grid's: all ranks make the same groups in the same
  // order, axes first, and pass equal arguments. InvalidArgument for sizes that differ and for a
  // name given twice.
  static absl::StatusOr<DeviceMesh> Create(std::shared_ptr<Communicator> world,
                                           const RankGrid& grid,
                                           absl::Span<const MeshGroup> combined = {});

  // A second arrangement of the same ranks, as the expert mesh beside the dense one. A group whose
  // members are those of one that exists shares its communicator; the others are made as by Create.
  // Collective.
  absl::StatusOr<DeviceMesh> View(const RankGrid& grid,
                                  absl::Span<const MeshGroup> combined = {}) const;

  const RankGrid& grid() const { return grid_; }
  int rank() const { return world_->rank(); }
  const std::shared_ptr<Communicator>& world() const { return world_; }
  // Of an axis or a combination; a check failure for any other name.
  const ProcessGroup& group(absl::string_view name) const;
  // Names of all groups, in the order in which they were made.
  std::vector<std::string> names() const;

 private:
  // A group and how it cuts the world: the numbers of all ranks' groups.
  struct Made {
    ProcessGroup group;
    std::vector<int64_t> cut;
  };
  DeviceMesh(std::shared_ptr<Communicator> world, const RankGrid& grid)
      : world_(std::move(world)), grid_(grid) {}
  absl::Status MakeGroups(absl::Span<const MeshGroup> combined, const std::vector<Made>& existing);
  absl::StatusOr<Made> MakeGroup(const MeshGroup& wanted, const std::vector<Made>& existing) const;

  std::shared_ptr<Communicator> world_;
  RankGrid grid_;
  std::vector<Made> made_;
};

}  // namespace meshfold::comm
