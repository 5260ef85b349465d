// Host tensors for tests: values from a key, and rows with guarded padding, so that a kernel that
// reads or writes between rows is caught.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor/tensor.h"

namespace meshfold::testing {

// Elements that are never to be read or written after each row. Floats there are NaN.
enum class Padding { kNone, kGuarded };

// An output for a kernel to fill: every element is NaN (integers: the lowest value), so that one
// left unwritten shows.
Tensor UnwrittenTensor(const Shape& shape, DType dtype = DType::kF32,
                       Padding padding = Padding::kNone);

// `values` in row-major order, converted to `dtype`.
Tensor MakeTensor(const std::vector<double>& values, const Shape& shape, DType dtype = DType::kF32,
                  Padding padding = Padding::kNone);
Tensor MakeIds(const std::vector<int32_t>& values, const Shape& shape,
               Padding padding = Padding::kNone);

// Normal values, a function of (name, index) only.
struct RandomOptions {
  double mean = 0, stddev = 1;
  DType dtype = DType::kF32;
  Padding padding = Padding::kNone;
};
Tensor RandomTensor(absl::string_view name, const Shape& shape, const RandomOptions& options = {});
// Uniform integers in [low, high).
Tensor RandomIds(absl::string_view name, const Shape& shape, int32_t low, int32_t high,
                 Padding padding = Padding::kNone);

// A copy of the elements with other padding.
Tensor WithPadding(const Tensor& tensor, Padding padding);

// True while the guard between rows of a tensor made here is untouched.
bool GuardIsIntact(const Tensor& tensor);

}  // namespace meshfold::testing
