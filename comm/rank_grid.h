// RankGrid: ranks arranged along named axes, on paper: no communicator, nothing collective.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace meshfold::comm {

struct MeshAxis {
  std::string name;  // "dp", "tp"
  int64_t size = 1;
};

// Row-major: the last axis is the innermost, its neighbours are consecutive ranks (Narayanan et al.
// 2021 place tensor parallelism there, since it talks most). With sizes s_0 ... s_n,
//   rank = sum over i of coordinate_i * (s_{i+1} * ... * s_n).
class RankGrid {
 public:
  // InvalidArgument, with all numbers, unless every size is at least 1, names differ and the sizes
  // multiply to `world`.
  static absl::StatusOr<RankGrid> Create(std::vector<MeshAxis> axes, int64_t world);

  int64_t world() const { return world_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }  // outermost first
  bool HasAxis(absl::string_view name) const;

  // Of an axis that exists; anything else is a check failure.
  int64_t size(absl::string_view axis) const;
  int64_t coordinate(int64_t rank, absl::string_view axis) const;
  // Ranks in a group over `axes`.
  int64_t GroupSize(absl::Span<const std::string> axes) const;

  // The ranks that differ from `rank` in the coordinates of `axes` alone, in ascending order: the
  // innermost axis runs fastest, however `axes` are ordered. No axes: the rank itself.
  std::vector<int64_t> GroupOf(int64_t rank, absl::Span<const std::string> axes) const;
  // The number of that group among all over `axes`, in the order of their first ranks, and the
  // rank's place in it.
  int64_t GroupIndex(int64_t rank, absl::Span<const std::string> axes) const;
  int64_t RankInGroup(int64_t rank, absl::Span<const std::string> axes) const;
  // All groups over `axes`, in order of their first ranks. They partition the world.
  std::vector<std::vector<int64_t>> Groups(absl::Span<const std::string> axes) const;

  // "pp 2 x dp 4 x tp 2" for messages.
  std::string ToString() const;

 private:
  RankGrid() = default;
  size_t Index(absl::string_view axis) const;
  // For each axis, whether it is among `axes`.
  std::vector<bool> Selected(absl::Span<const std::string> axes) const;
  // `rank` with its coordinates of the axes where `selected` is not `keep` taken out: the number
  // among the ranks of the rest.
  int64_t Project(int64_t rank, const std::vector<bool>& selected, bool keep) const;

  std::vector<MeshAxis> axes_;
  std::vector<int64_t> strides_;
  int64_t world_ = 1;
};

// InvalidArgument, naming axis and groups, unless each of `axes` divides the world into the same
// groups in both grids: two views of one world, such as the dense and the expert one, must agree in
// what they share.
absl::Status CheckSharedAxes(const RankGrid& a, const RankGrid& b,
                             absl::Span<const std::string> axes);

}  // namespace meshfold::comm
