// Sums over ranks in host memory.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"

namespace meshfold::comm {

// Writes parts[0][i] + parts[1][i] + ..., added up in that order, to every outs[j][i], for
// begin <= i < end. `dtype` is f32, i32 or i64; integers wrap around. An output may be one of the
// parts; otherwise they do not overlap.
void SumInRankOrder(DType dtype, absl::Span<const void* const> parts, int64_t begin, int64_t end,
                    absl::Span<void* const> outs);

}  // namespace meshfold::comm
