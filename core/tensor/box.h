// Box: an axis-aligned part of a tensor, and how its elements lie in the whole. What shards,
// checkpoint pieces and initial values are described with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/tensor/shape.h"
#include "core/tensor/tensor.h"

namespace meshfold {

// Indices [start[d], start[d] + extent[d]) on every dim d. Extents may be 0.
struct Box {
  std::vector<int64_t> start, extent;

  static Box Whole(const Shape& shape);
  Shape shape() const { return Shape(extent); }
  bool IsWhole(const Shape& whole) const { return *this == Whole(whole); }
  // "[0:4, 8:16]" for messages.
  std::string ToString() const;
  friend bool operator==(const Box& a, const Box& b) {
    return a.start == b.start && a.extent == b.extent;
  }
};

// Calls copy(whole_flat, box_flat, count) for each run of elements of the box that is contiguous in
// the row-major order of a tensor of shape `whole`, in the box's own row-major order. A run covers
// whole rows (of the last dim) of the box. The box must lie inside the tensor.
using RunVisitor = absl::FunctionRef<void(int64_t whole_flat, int64_t box_flat, int64_t count)>;
void ForEachRun(const Box& box, const Shape& whole, RunVisitor copy);
// The same for elements [begin, end) of the box's row-major order alone, which may cut rows.
void ForEachRun(const Box& box, int64_t begin, int64_t end, const Shape& whole, RunVisitor copy);

// part = whole[box], and the other way about. Host memory, equal dtypes, any pitches; `part` has
// the box's shape.
void CopyFromWhole(const Tensor& whole, const Box& box, const Tensor& part);
void CopyIntoWhole(const Tensor& part, const Box& box, const Tensor& whole);

}  // namespace meshfold
