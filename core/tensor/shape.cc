#include "core/tensor/shape.h"

#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"

namespace meshfold {

size_t Shape::Index(int i) const {
  MF_CHECK(i >= -rank() && i < rank()) << " dim " << i << " of shape " << ToString();
  return static_cast<size_t>(i < 0 ? i + rank() : i);
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (int64_t extent : dims_) n *= extent;
  return n;
}

int64_t Shape::rows() const {
  int64_t n = 1;
  for (size_t i = 0; i + 1 < dims_.size(); ++i) n *= dims_[i];
  return n;
}

std::string Shape::ToString() const { return absl::StrCat("[", absl::StrJoin(dims_, ", "), "]"); }

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.ToString(); }

}  // namespace meshfold
