#include "parallel/rank_texts.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"

namespace meshfold::parallel {
namespace {

constexpr size_t kMaxMessage = 4096;

Tensor HostTensor(const Shape& shape, DType dtype) {
  return Tensor::Contiguous(shape, dtype, SystemHostAllocator());
}

// [size][values.size()]: the values of every rank.
absl::StatusOr<Tensor> AllGatherNumbers(comm::Communicator& group,
                                        const std::vector<int64_t>& values) {
  const int64_t n = static_cast<int64_t>(values.size());
  const Tensor own = HostTensor({n}, DType::kI64);
  const Tensor all = HostTensor({group.size(), n}, DType::kI64);
  std::copy(values.begin(), values.end(), own.data<int64_t>());
  MF_RETURN_IF_ERROR(comm::WaitFor(group.AllGather(own, all), group));
  return all;
}

// A u8 tensor that holds `text`.
Tensor BytesOf(absl::string_view text) {
  const Tensor bytes = HostTensor({static_cast<int64_t>(text.size())}, DType::kU8);
  if (!text.empty()) std::memcpy(bytes.raw(), text.data(), text.size());
  return bytes;
}

}  // namespace

absl::Status AgreeOnStatus(comm::Communicator& group, const absl::Status& status) {
  if (group.size() == 1) return status;
  std::string message(status.message().substr(0, kMaxMessage));
  MF_ASSIGN_OR_RETURN(const Tensor all,
                      AllGatherNumbers(group, {static_cast<int64_t>(status.code()),
                                               static_cast<int64_t>(message.size())}));
  // All ranks see the same numbers and so the same first failure.
  int failed = 0;
  while (failed < group.size() && all.row<int64_t>(failed)[0] == 0) ++failed;
  if (failed == group.size()) return absl::OkStatus();
  message.resize(static_cast<size_t>(all.row<int64_t>(failed)[1]));
  const Tensor bytes = BytesOf(message);
  MF_RETURN_IF_ERROR(comm::WaitFor(group.Broadcast(bytes, failed), group));
  return absl::Status(
      static_cast<absl::StatusCode>(all.row<int64_t>(failed)[0]),
      absl::StrCat("rank ", failed, ": ",
                   absl::string_view(static_cast<const char*>(bytes.raw()), message.size())));
}

absl::StatusOr<std::vector<std::string>> GatherTexts(comm::Communicator& group,
                                                     absl::string_view text) {
  MF_ASSIGN_OR_RETURN(const Tensor sizes,
                      AllGatherNumbers(group, {static_cast<int64_t>(text.size())}));
  if (group.rank() != 0) {
    if (!text.empty()) MF_RETURN_IF_ERROR(comm::WaitFor(group.Send(BytesOf(text), 0), group));
    return std::vector<std::string>();
  }
  std::vector<std::string> texts = {std::string(text)};
  for (int rank = 1; rank < group.size(); ++rank) {
    std::string received(static_cast<size_t>(sizes.row<int64_t>(rank)[0]), '\0');
    const Tensor bytes = BytesOf(received);
    if (!received.empty()) {
      MF_RETURN_IF_ERROR(comm::WaitFor(group.Recv(bytes, rank), group));
      std::memcpy(received.data(), bytes.raw(), received.size());
    }
    texts.push_back(std::move(received));
  }
  return texts;
}

}  // namespace meshfold::parallel
