#include "moe/host_copy.h"

#include <memory>

#include "core/backend/backend.h"
#include "core/base/check.h"

namespace meshfold::moe {
namespace {

Tensor CopyFromHost(const void* values, const Tensor& out) {
  std::unique_ptr<Completion> copy = CurrentBackend().CopyFromHost(values, out);
  ThrowIfError(copy->HostWait(absl::Minutes(10)));
  return out;
}

}  // namespace

std::vector<int64_t> ReadOnHost(const Tensor& values) {
  std::vector<int32_t> host(static_cast<size_t>(values.numel()));
  std::unique_ptr<Completion> copy = CurrentBackend().CopyToHost(values, host.data());
  AwaitOnHost(*copy);
  return std::vector<int64_t>(host.begin(), host.end());
}

Tensor Upload(const std::vector<float>& values) {
  return CopyFromHost(values.data(), Tensor::Contiguous({static_cast<int64_t>(values.size())}));
}

Tensor Upload(const std::vector<int32_t>& values, const Shape& shape) {
  return CopyFromHost(values.data(), Tensor::Contiguous(shape, DType::kI32));
}

}  // namespace meshfold::moe
