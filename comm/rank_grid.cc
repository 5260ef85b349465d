#include "comm/rank_grid.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"

namespace meshfold::comm {

absl::StatusOr<RankGrid> RankGrid::Create(std::vector<MeshAxis> axes, int64_t world) {
  RankGrid grid;
  grid.axes_ = std::move(axes);
  grid.world_ = world;
  std::set<std::string> names;
  int64_t product = 1;
  for (const MeshAxis& axis : grid.axes_) {
    if (axis.size < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("mesh: axis ", axis.name, " has size ", axis.size, ", must be at least 1"));
    }
    if (!names.insert(axis.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("mesh: two axes are named ", axis.name));
    }
    if (__builtin_mul_overflow(product, axis.size, &product)) product = -1;
    if (product < 0 || product > world) break;
  }
  if (product != world) {
    return absl::InvalidArgumentError(absl::StrCat("mesh: ", grid.ToString(), " does not make ",
                                                   world, world == 1 ? " rank" : " ranks"));
  }
  grid.strides_.assign(grid.axes_.size(), 1);
  for (size_t i = grid.axes_.size(); i-- > 1;) {
    grid.strides_[i - 1] = grid.strides_[i] * grid.axes_[i].size;
  }
  return grid;
}

size_t RankGrid::Index(absl::string_view axis) const {
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == axis) return i;
  }
  MF_CHECK(false) << " no axis '" << std::string(axis) << "' in " << ToString();
  return 0;
}

bool RankGrid::HasAxis(absl::string_view name) const {
  for (const MeshAxis& axis : axes_) {
    if (axis.name == name) return true;
  }
  return false;
}

int64_t RankGrid::size(absl::string_view axis) const { return axes_[Index(axis)].size; }

int64_t RankGrid::coordinate(int64_t rank, absl::string_view axis) const {
  MF_CHECK(rank >= 0 && rank < world_) << " rank " << rank << " of " << world_;
  const size_t i = Index(axis);
  return rank / strides_[i] % axes_[i].size;
}

std::vector<bool> RankGrid::Selected(absl::Span<const std::string> axes) const {
  std::vector<bool> selected(axes_.size(), false);
  for (const std::string& axis : axes) selected[Index(axis)] = true;
  return selected;
}

int64_t RankGrid::GroupSize(absl::Span<const std::string> axes) const {
  const std::vector<bool> selected = Selected(axes);
  int64_t size = 1;
  for (size_t i = 0; i < axes_.size(); ++i) size *= selected[i] ? axes_[i].size : 1;
  return size;
}

int64_t RankGrid::Project(int64_t rank, const std::vector<bool>& selected, bool keep) const {
  MF_CHECK(rank >= 0 && rank < world_) << " rank " << rank << " of " << world_;
  int64_t number = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (selected[i] != keep) continue;
    number = number * axes_[i].size + rank / strides_[i] % axes_[i].size;
  }
  return number;
}

int64_t RankGrid::GroupIndex(int64_t rank, absl::Span<const std::string> axes) const {
  return Project(rank, Selected(axes), false);
}

int64_t RankGrid::RankInGroup(int64_t rank, absl::Span<const std::string> axes) const {
  return Project(rank, Selected(axes), true);
}

std::vector<int64_t> RankGrid::GroupOf(int64_t rank, absl::Span<const std::string> axes) const {
  MF_CHECK(rank >= 0 && rank < world_) << " rank " << rank << " of " << world_;
  const std::vector<bool> selected = Selected(axes);
  int64_t first = rank;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (selected[i]) first -= rank / strides_[i] % axes_[i].size * strides_[i];
  }
  std::vector<int64_t> members = {first};
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (!selected[i]) continue;
    std::vector<int64_t> wider;
    wider.reserve(members.size() * static_cast<size_t>(axes_[i].size));
    for (int64_t member : members) {
      for (int64_t c = 0; c < axes_[i].size; ++c) wider.push_back(member + c * strides_[i]);
    }
    members = std::move(wider);
  }
  return members;
}

std::vector<std::vector<int64_t>> RankGrid::Groups(absl::Span<const std::string> axes) const {
  const std::vector<bool> selected = Selected(axes);
  std::vector<std::vector<int64_t>> groups(static_cast<size_t>(world_ / GroupSize(axes)));
  for (int64_t rank = 0; rank < world_; ++rank) {
    groups[static_cast<size_t>(Project(rank, selected, false))].push_back(rank);
  }
  return groups;
}

std::string RankGrid::ToString() const {
  return absl::StrJoin(axes_, " x ", [](std::string* out, const MeshAxis& axis) {
    absl::StrAppend(out, axis.name, " ", axis.size);
  });
}

absl::Status CheckSharedAxes(const RankGrid& a, const RankGrid& b,
                             absl::Span<const std::string> axes) {
  for (const std::string& axis : axes) {
    if (a.Groups({axis}) == b.Groups({axis})) continue;
    return absl::InvalidArgumentError(absl::StrCat("mesh: axis ", axis, " makes other groups in ",
                                                   a.ToString(), " than in ", b.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace meshfold::comm
