#include <cuda_runtime.h>
#include <nccl.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/build/cuda_add.h"

namespace meshfold::build_test {
namespace {

__global__ void Add(float a, float b, float* sum) { *sum = a + b; }

}  // namespace

absl::StatusOr<float> AddOnDevice(float a, float b) {
  int num_devices = 0;
  int nccl_version = 0;
  const cudaError_t found = cudaGetDeviceCount(&num_devices);
  if (found != cudaSuccess || num_devices == 0 || ncclGetVersion(&nccl_version) != ncclSuccess) {
    return absl::UnavailableError(absl::StrCat("[AddOnDevice] ", cudaGetErrorString(found)));
  }
  float* sum = nullptr;
  float result = 0;
  cudaError_t error = cudaMallocManaged(&sum, sizeof(float));
  if (error == cudaSuccess) {
    Add<<<1, 1>>>(a, b, sum);
    error = cudaDeviceSynchronize();
    if (error == cudaSuccess) result = *sum;
    cudaFree(sum);
  }
  if (error != cudaSuccess) {
    return absl::InternalError(absl::StrCat("[AddOnDevice] ", cudaGetErrorString(error)));
  }
  return result;
}

}  // namespace meshfold::build_test
