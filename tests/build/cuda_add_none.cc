#include "absl/status/status.h"
#include "tests/build/cuda_add.h"

namespace meshfold::build_test {

absl::StatusOr<float> AddOnDevice(float, float) {
  return absl::UnavailableError("[AddOnDevice] built without CUDA");
}

}  // namespace meshfold::build_test
