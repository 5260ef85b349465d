#include "comm/share_window.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"

namespace meshfold::comm {
namespace {

Tensor Integers(int64_t count) {
  return Tensor::Contiguous({count}, DType::kI64, SystemHostAllocator());
}

}  // namespace

absl::StatusOr<WindowOffer> ShareWindow(Communicator& group, const SharedWindowShape& shape) {
  absl::StatusOr<std::shared_ptr<SharedWindow>> window =
      absl::UnavailableError("rank 0 made no window");
  const Tensor address = Integers(4);  // made, process, file, nonce
  int64_t* fields = address.data<int64_t>();
  if (group.rank() == 0) {
    window = SharedWindow::Create(shape);
    const SharedWindow::Address own = window.ok() ? (*window)->address() : SharedWindow::Address();
    fields[0] = window.ok();
    fields[1] = own.process;
    fields[2] = own.file;
    fields[3] = own.nonce;
  }
  MF_RETURN_IF_ERROR(WaitFor(group.Broadcast(address, 0), group));
  if (group.rank() != 0 && fields[0] != 0) {
    window = SharedWindow::Open(shape, {fields[1], fields[2], fields[3]});
  }
  const Tensor mapped = Integers(1), all_mapped = Integers(group.size());
  mapped.data<int64_t>()[0] = window.ok();
  MF_RETURN_IF_ERROR(WaitFor(group.AllGather(mapped, all_mapped), group));
  if (!window.ok()) return WindowOffer{nullptr, std::string(window.status().message())};
  (*window)->CloseAddress();
  for (int rank = 0; rank < group.size(); ++rank) {
    if (all_mapped.data<int64_t>()[rank] == 0) {
      return WindowOffer{nullptr, absl::StrCat("rank ", rank, " could not map the window")};
    }
  }
  return WindowOffer{*std::move(window), ""};
}

}  // namespace meshfold::comm
