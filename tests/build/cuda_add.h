// The smallest kernel: proves that nvcc's objects link into a test, and that the same test builds
// without CUDA.
#pragma once

#include "absl/status/statusor.h"

namespace meshfold::build_test {

// a + b, computed on the device; Unavailable where there is none or the build has no CUDA.
absl::StatusOr<float> AddOnDevice(float a, float b);

}  // namespace meshfold::build_test
