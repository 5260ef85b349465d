// Which rank writes what of a checkpoint: one copy of each box, so that no rank writes much more
// than the others. Pure functions; nothing communicates.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/nn/layout.h"
#include "core/tensor/shape.h"
#include "parallel/rank_layout.h"

namespace meshfold::parallel {

// A box of a tensor and the ranks that have a copy of it.
struct Copies {
  std::shared_ptr<const std::vector<int64_t>> holders;  // ascending, not empty
  int64_t bytes = 0;
};

// For each of `boxes` the holder that writes it. Those with one holder first, then by falling bytes
// each to the holder with the least so far, the lowest among equals: every rank is within the bytes
// of the largest shared box of the even share, where the holders allow one.
std::vector<int64_t> AssignWriters(absl::Span<const Copies> boxes);

// A tensor of the model as all ranks of a pipeline stage know it.
struct SavedTensor {
  Shape shape;  // global
  Layout layout;
  int64_t element_bytes = 4;
};

// For each of `tensors`, which rank's pipeline stage holds, whether `rank` writes the part of it
// that it holds. Of the ranks of the stage with the same non-empty part exactly one does; an empty
// tensor is written by the first. Equal arguments but for `rank` on all of them. Errors as of
// LocalBox.
absl::StatusOr<std::vector<bool>> PlanSave(absl::Span<const SavedTensor> tensors,
                                           const RankLayout& ranks, int64_t rank);

}  // namespace meshfold::parallel
