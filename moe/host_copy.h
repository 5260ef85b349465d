// Small vectors between host and device: row counts down, coefficients and tables up.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor/tensor.h"

namespace meshfold::moe {

// The elements of a contiguous i32 tensor. Waits for all device work issued before it; inside a
// fiber it yields exactly once. StatusError when the copy fails.
std::vector<int64_t> ReadOnHost(const Tensor& values);

// f32 [values.size()] on the current device, filled when this returns. Never yields. Call it right
// after a ReadOnHost, when no other device work is in the queue. StatusError when the copy fails.
Tensor Upload(const std::vector<float>& values);
// The same with i32 values under a shape.
Tensor Upload(const std::vector<int32_t>& values, const Shape& shape);

}  // namespace meshfold::moe
