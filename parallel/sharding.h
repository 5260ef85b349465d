// What layouts say about ranks: which box of a tensor a rank holds, whose copy counts, and which
// ranks' gradients add up. Pure functions on grids; nothing communicates.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/rank_grid.h"
#include "core/nn/layout.h"
#include "core/tensor/box.h"
#include "core/tensor/shape.h"
#include "parallel/rank_layout.h"

namespace meshfold::parallel {

// Part `index` of `parts` of [0, size): ceil(size / parts) each, the last ones short or empty.
struct Interval {
  int64_t begin = 0, count = 0;
};
Interval PartOf(int64_t size, int64_t parts, int64_t index);

// The view of `ranks` that `layout` belongs to.
const comm::RankGrid& ViewOf(const Layout& layout, const RankLayout& ranks);

// What `rank` holds of a tensor of `shape`: every kShard placement cuts its dim, in the order in
// which they are listed, kPartial ones cut nothing. InvalidArgument, with the numbers, when a
// placement names no axis of its view or no dim of the tensor, or when parts and ranks of an axis
// do not divide each other.
absl::StatusOr<Box> LocalBox(const Shape& shape, const Layout& layout, const RankLayout& ranks,
                             int64_t rank);

// The ranks of rank's pipeline stage that hold the same box as it, ascending; `rank` is among them.
// Layouts that LocalBox accepts only.
std::vector<int64_t> CopiesOf(const Layout& layout, const RankLayout& ranks, int64_t rank);
// Whether `rank` is the first of those that hold the same box: the copy that counts in norms and
// checkpoints. Layouts that LocalBox accepts only.
bool IsFirstCopy(const Layout& layout, const RankLayout& ranks, int64_t rank);
// Whether some axis cuts the tensor.
bool IsSharded(const Layout& layout, const RankLayout& ranks);

// The ranks whose summands make up the gradient of `rank`'s box, ascending: those that differ along
// the axes of kPartial placements alone. Just `rank` when there is none.
std::vector<int64_t> SummingRanks(const Layout& grad_layout, const RankLayout& ranks, int64_t rank);

}  // namespace meshfold::parallel
