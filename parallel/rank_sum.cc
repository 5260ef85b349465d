#include "parallel/rank_sum.h"

#include <algorithm>
#include <cstdint>

#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"

namespace meshfold::parallel {

absl::StatusOr<std::vector<double>> SumOverRanks(comm::Communicator& group,
                                                 const std::vector<double>& values) {
  if (group.size() == 1) return values;
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor own = Tensor::Contiguous({n}, DType::kF64, SystemHostAllocator());
  const Tensor all = Tensor::Contiguous({group.size(), n}, DType::kF64, SystemHostAllocator());
  std::copy(values.begin(), values.end(), own.data<double>());
  MF_RETURN_IF_ERROR(comm::WaitFor(group.AllGather(own, all), group));
  std::vector<double> sums(values.size(), 0.0);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += all.row<double>(rank)[i];
  }
  return sums;
}

}  // namespace meshfold::parallel
