#include "parallel/checkpoint_pieces.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace meshfold::parallel {
namespace {

constexpr int kMaxRank = 32;
constexpr size_t kMaxBoxes = 16384;

// A box with an order.
struct Area {
  std::vector<int64_t> start, extent;
  bool operator<(const Area& other) const {
    return std::tie(start, extent) < std::tie(other.start, other.extent);
  }
  int64_t end(size_t d) const { return start[d] + extent[d]; }
  // "[0, 4) x [2, 6)".
  std::string ToString() const {
    std::vector<std::string> sides;
    for (size_t d = 0; d < start.size(); ++d) {
      sides.push_back(absl::StrCat("[", start[d], ", ", end(d), ")"));
    }
    return sides.empty() ? "the scalar" : absl::StrJoin(sides, " x ");
  }
};

using FlatRange = std::pair<int64_t, int64_t>;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

absl::Status CheckShape(const CheckpointTensorInfo& info) {
  if (info.shape.rank() > kMaxRank) {
    return Bad(absl::StrCat("has ", info.shape.rank(), " dims, at most ", kMaxRank, " are read"));
  }
  int64_t bytes = SizeOf(info.dtype);
  for (int64_t extent : info.shape.dims()) {
    // Stricter than needed where a later extent is 0: readers multiply from the left, too.
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return Bad(absl::StrCat("has the shape ", info.shape.ToString(), ", which is not possible"));
    }
  }
  return absl::OkStatus();
}

// The box lies inside the tensor and the flat range inside the box. `volume` is the box's.
absl::Status CheckPiece(const CheckpointPiece& piece, const Shape& shape, int64_t& volume) {
  size_t rank = static_cast<size_t>(shape.rank());
  bool fits = piece.start.size() == rank && piece.extent.size() == rank;
  volume = 1;
  for (size_t d = 0; fits && d < rank; ++d) {
    int64_t size = shape[static_cast<int>(d)];
    fits = piece.start[d] >= 0 && piece.extent[d] >= 0 && piece.extent[d] <= size &&
           piece.start[d] <= size - piece.extent[d];
    volume *= piece.extent[d];  // no overflow: the shape's prefixes are larger
  }
  fits = fits && piece.flat_begin >= 0 && piece.flat_begin <= piece.flat_end &&
         piece.flat_end <= volume;
  if (fits) return absl::OkStatus();
  return Bad(absl::StrCat("has a piece outside its shape ", shape.ToString(), ": start [",
                          absl::StrJoin(piece.start, ", "), "], extent [",
                          absl::StrJoin(piece.extent, ", "), "], flat [", piece.flat_begin, ", ",
                          piece.flat_end, ")"));
}

// The parts of one box cover [0, volume) once.
absl::Status CheckParts(const Area& box, std::vector<FlatRange>& parts, int64_t volume) {
  std::sort(parts.begin(), parts.end());
  parts.emplace_back(volume, volume);
  int64_t at = 0;
  for (const auto& [begin, end] : parts) {
    if (begin != at) {
      return Bad(absl::StrCat("has elements [", std::min(begin, at), ", ", std::max(begin, at),
                              ") of ", box.ToString(),
                              begin > at ? " in no piece" : " in two pieces"));
    }
    at = end;
  }
  return absl::OkStatus();
}

bool Overlap(const Area& a, const Area& b) {
  for (size_t d = 0; d < a.start.size(); ++d) {
    if (a.start[d] >= b.end(d) || b.start[d] >= a.end(d)) return false;
  }
  return true;
}

// `a` and `b` in common, counted from a's start.
Box CommonBox(const Box& a, const Box& b) {
  Box common;
  for (size_t d = 0; d < a.start.size(); ++d) {
    const int64_t begin = std::max(a.start[d], b.start[d]);
    const int64_t end = std::min(a.start[d] + a.extent[d], b.start[d] + b.extent[d]);
    common.start.push_back(begin - a.start[d]);
    common.extent.push_back(std::max<int64_t>(0, end - begin));
  }
  return common;
}

// How many elements of `box` come before element `flat` of the tensor that it lies in.
int64_t NumBefore(const Box& box, int64_t flat, const Shape& whole) {
  int64_t low = 0, high = box.shape().numel();
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    int64_t in_whole = 0;
    ForEachRun(box, middle, middle + 1, whole,
               [&](int64_t at, int64_t, int64_t) { in_whole = at; });
    if (in_whole < flat) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

absl::Status CheckTiling(const CheckpointTensorInfo& info) {
  MF_RETURN_IF_ERROR(CheckShape(info));
  std::map<Area, std::vector<FlatRange>> parts;
  for (const CheckpointPiece& piece : info.pieces) {
    int64_t volume;
    MF_RETURN_IF_ERROR(CheckPiece(piece, info.shape, volume));
    if (piece.flat_begin == piece.flat_end) continue;  // the empty share of some rank
    parts[{piece.start, piece.extent}].emplace_back(piece.flat_begin, piece.flat_end);
  }
  if (parts.size() > kMaxBoxes) {
    return Bad(
        absl::StrCat("is cut into ", parts.size(), " boxes, at most ", kMaxBoxes, " are read"));
  }
  int64_t missing = info.shape.numel();
  for (auto& [box, ranges] : parts) {
    int64_t volume = 1;
    for (int64_t extent : box.extent) volume *= extent;
    MF_RETURN_IF_ERROR(CheckParts(box, ranges, volume));
    // Boxes come ordered by where they start on dim 0.
    for (auto other = parts.upper_bound(box);
         other != parts.end() && !box.start.empty() && other->first.start[0] < box.end(0);
         ++other) {
      if (Overlap(box, other->first)) {
        return Bad(absl::StrCat("has elements in two pieces: of ", box.ToString(), " and of ",
                                other->first.ToString()));
      }
    }
    missing -= volume;
  }
  // Boxes are disjoint by now, so their volumes add up to the tensor's or to less.
  if (missing != 0) return Bad(absl::StrCat("has ", missing, " elements in no piece"));
  return absl::OkStatus();
}

absl::StatusOr<CheckpointTensors> MergeShards(absl::Span<const CheckpointTensors> shards) {
  CheckpointTensors merged;
  for (const CheckpointTensors& shard : shards) {
    for (const auto& [name, info] : shard) {
      auto [at, is_new] = merged.try_emplace(name, info);
      if (is_new) continue;
      CheckpointTensorInfo& all = at->second;
      if (all.dtype != info.dtype || all.shape != info.shape) {
        return Bad(absl::StrCat("tensor '", name, "' is ", DTypeName(all.dtype), " ",
                                all.shape.ToString(), " on one rank and ", DTypeName(info.dtype),
                                " ", info.shape.ToString(), " on another"));
      }
      all.pieces.insert(all.pieces.end(), info.pieces.begin(), info.pieces.end());
    }
  }
  for (const auto& [name, info] : merged) {
    absl::Status status = CheckTiling(info);
    if (!status.ok()) return Bad(absl::StrCat("tensor '", name, "' ", status.message()));
  }
  return merged;
}

void ForEachCommonRun(const CheckpointPiece& piece, const Box& box, RunVisitor copy) {
  const Box holder{piece.start, piece.extent};
  const Box in_holder = CommonBox(holder, box), in_box = CommonBox(box, holder);
  // Both boxes' orders run through the common elements alike: the runs are cut where either is.
  const int64_t begin = NumBefore(in_holder, piece.flat_begin, holder.shape());
  const int64_t end = NumBefore(in_holder, piece.flat_end, holder.shape());
  ForEachRun(in_holder, begin, end, holder.shape(), [&](int64_t from, int64_t at, int64_t count) {
    ForEachRun(in_box, at, at + count, box.shape(), [&](int64_t to, int64_t here, int64_t length) {
      copy(from + (here - at) - piece.flat_begin, to, length);
    });
  });
}

}  // namespace meshfold::parallel
