#include "parallel/sharding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace meshfold::parallel {
namespace {

bool Cuts(const Placement& placement, const comm::RankGrid& grid) {
  return placement.kind == Placement::Kind::kShard &&
         std::min(placement.parts, grid.size(placement.axis)) > 1;
}

// Which of the placement's parts a coordinate along its axis belongs to.
int64_t PartIndex(const Placement& placement, const comm::RankGrid& grid, int64_t rank) {
  const int64_t size = grid.size(placement.axis);
  return grid.coordinate(rank, placement.axis) * std::min(placement.parts, size) / size;
}

// The ranks of `axes` around `rank` that agree with it in the part of each of `placements`.
std::vector<int64_t> Agreeing(const std::vector<int64_t>& candidates,
                              const std::vector<Placement>& placements, const comm::RankGrid& grid,
                              int64_t rank) {
  std::vector<int64_t> agreeing;
  for (int64_t other : candidates) {
    const bool agrees =
        std::all_of(placements.begin(), placements.end(), [&](const Placement& placement) {
          return PartIndex(placement, grid, other) == PartIndex(placement, grid, rank);
        });
    if (agrees) agreeing.push_back(other);
  }
  return agreeing;
}

absl::Status CheckPlacement(const Placement& placement, const Shape& shape,
                            const comm::RankGrid& grid) {
  if (!grid.HasAxis(placement.axis)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Layout] there is no axis '", placement.axis, "' in ", grid.ToString()));
  }
  const int64_t size = grid.size(placement.axis), parts = placement.parts;
  if (parts < 1 || (size % parts != 0 && parts % size != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("[Layout] ", parts, " parts over the ", size,
                                                   " ranks of axis '", placement.axis, "'"));
  }
  if (placement.kind != Placement::Kind::kShard) return absl::OkStatus();
  if (placement.dim < 0 || placement.dim >= shape.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("[Layout] axis '", placement.axis, "' cuts dim ",
                                                   placement.dim, " of ", shape.ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

Interval PartOf(int64_t size, int64_t parts, int64_t index) {
  const int64_t each = (size + parts - 1) / parts;
  const int64_t begin = std::min(size, index * each);
  return {begin, std::min(size, begin + each) - begin};
}

const comm::RankGrid& ViewOf(const Layout& layout, const RankLayout& ranks) {
  return layout.view == "expert" ? ranks.expert : ranks.dense;
}

absl::StatusOr<Box> LocalBox(const Shape& shape, const Layout& layout, const RankLayout& ranks,
                             int64_t rank) {
  const comm::RankGrid& grid = ViewOf(layout, ranks);
  Box box = Box::Whole(shape);
  for (const Placement& placement : layout.placements) {
    if (absl::Status status = CheckPlacement(placement, shape, grid); !status.ok()) return status;
    if (!Cuts(placement, grid)) continue;
    const size_t dim = static_cast<size_t>(placement.dim);
    const Interval part =
        PartOf(box.extent[dim], std::min(placement.parts, grid.size(placement.axis)),
               PartIndex(placement, grid, rank));
    box.start[dim] += part.begin;
    box.extent[dim] = part.count;
  }
  return box;
}

std::vector<int64_t> CopiesOf(const Layout& layout, const RankLayout& ranks, int64_t rank) {
  const comm::RankGrid& grid = ViewOf(layout, ranks);
  std::vector<std::string> axes;
  for (const comm::MeshAxis& axis : grid.axes()) {
    if (axis.name != "pp") axes.push_back(axis.name);
  }
  std::vector<Placement> shards;
  for (const Placement& placement : layout.placements) {
    if (placement.kind == Placement::Kind::kShard) shards.push_back(placement);
  }
  return Agreeing(grid.GroupOf(rank, axes), shards, grid, rank);
}

bool IsFirstCopy(const Layout& layout, const RankLayout& ranks, int64_t rank) {
  return CopiesOf(layout, ranks, rank).front() == rank;
}

bool IsSharded(const Layout& layout, const RankLayout& ranks) {
  const comm::RankGrid& grid = ViewOf(layout, ranks);
  return std::any_of(layout.placements.begin(), layout.placements.end(),
                     [&](const Placement& placement) { return Cuts(placement, grid); });
}

std::vector<int64_t> SummingRanks(const Layout& grad_layout, const RankLayout& ranks,
                                  int64_t rank) {
  const comm::RankGrid& grid = ViewOf(grad_layout, ranks);
  std::vector<std::string> axes;
  std::vector<Placement> partials;
  for (const Placement& placement : grad_layout.placements) {
    if (placement.kind != Placement::Kind::kPartial) continue;
    axes.push_back(placement.axis);
    partials.push_back(placement);
    // One part: all ranks of the axis add up.
  }
  return Agreeing(grid.GroupOf(rank, axes), partials, grid, rank);
}

}  // namespace meshfold::parallel
