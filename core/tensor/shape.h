// The extents of a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

namespace meshfold {

// Row-major extents, outermost first; the last dim is the contiguous one. A scalar has no dims.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : dims_(dims) {}
  explicit Shape(absl::Span<const int64_t> dims) : dims_(dims.begin(), dims.end()) {}

  int rank() const { return static_cast<int>(dims_.size()); }
  // Extent of dim `i`; negative i counts from the end.
  int64_t operator[](int i) const { return dims_[Index(i)]; }
  void set(int i, int64_t extent) { dims_[Index(i)] = extent; }
  absl::Span<const int64_t> dims() const { return dims_; }

  // Product of all extents (1 for a scalar).
  int64_t numel() const;
  // Extent of the last dim (1 for a scalar), and the product of the others: a tensor is rows() rows
  // of cols() contiguous elements.
  int64_t cols() const { return dims_.empty() ? 1 : dims_.back(); }
  int64_t rows() const;

  // "[2, 3, 4]".
  std::string ToString() const;

  friend bool operator==(const Shape& a, const Shape& b) { return a.dims_ == b.dims_; }
  friend bool operator!=(const Shape& a, const Shape& b) { return !(a == b); }

 private:
  // `i` counted from the front; a check failure when there is no such dim.
  size_t Index(int i) const;

  absl::InlinedVector<int64_t, 4> dims_;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape);

}  // namespace meshfold
