#include "comm/self_communicator.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/host_bytes.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {

SelfCommunicator::SelfCommunicator(std::string name)
    : SelfCommunicator(std::move(name), std::make_shared<World>(), nullptr) {}

SelfCommunicator::SelfCommunicator(std::string name, std::shared_ptr<World> world,
                                   std::shared_ptr<TrafficStats> stats)
    : Communicator(
          {.name = std::move(name), .transport = "none (one rank)", .stats = std::move(stats)}),
      world_(std::move(world)) {}

void SelfCommunicator::Abort(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(world_->mutex);
  if (world_->aborted.ok()) world_->aborted = absl::AbortedError(reason.message());
}

absl::Status SelfCommunicator::AbortedStatus() {
  std::lock_guard<std::mutex> lock(world_->mutex);
  return world_->aborted;
}

std::unique_ptr<Work> SelfCommunicator::Finish(std::string what) {
  return std::make_unique<FinishedWork>(std::move(what), AbortedStatus());
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::Copy(std::string what, const Tensor& in,
                                                             const Tensor& out) {
  if (in.device() == DeviceKind::kHost) {
    CopyBytes(in.raw(), out.raw(), in.nbytes());
  } else if (in.numel() > 0 && in.raw() != out.raw()) {
    CurrentContext().backend->Copy(in.Reshape({in.numel()}), out.Reshape({in.numel()}));
  }
  return Finish(std::move(what));
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoAllReduce(std::string what,
                                                                    const Tensor& in,
                                                                    const Tensor& out) {
  return Copy(std::move(what), in, out);
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoAllGather(std::string what,
                                                                    const Tensor& in,
                                                                    const Tensor& out) {
  return Copy(std::move(what), in, out);
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoReduceScatter(std::string what,
                                                                        const Tensor& in,
                                                                        const Tensor& out) {
  return Copy(std::move(what), in, out);
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoAllToAllV(std::string what,
                                                                    const Tensor& in,
                                                                    absl::Span<const int64_t>,
                                                                    const Tensor& out,
                                                                    absl::Span<const int64_t>) {
  return Copy(std::move(what), in, out);
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoBroadcast(std::string what, const Tensor&,
                                                                    int) {
  return Finish(std::move(what));
}

// Never reached: the checks in Communicator refuse a rank as its own peer.
absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoSend(std::string what, const Tensor&,
                                                               int) {
  return absl::InternalError(absl::StrCat("[", what, "] a group of one has no peers"));
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoRecv(std::string what, const Tensor&,
                                                               int) {
  return absl::InternalError(absl::StrCat("[", what, "] a group of one has no peers"));
}

absl::StatusOr<std::unique_ptr<Work>> SelfCommunicator::DoBarrier(std::string what) {
  return Finish(std::move(what));
}

absl::StatusOr<std::shared_ptr<Communicator>> SelfCommunicator::DoSplit(int color, int,
                                                                        absl::string_view name) {
  MF_RETURN_IF_ERROR(AbortedStatus());
  if (color < 0) return std::shared_ptr<Communicator>();
  return std::shared_ptr<Communicator>(new SelfCommunicator(std::string(name), world_, stats()));
}

}  // namespace meshfold::comm
