#include "comm/communicator.h"

#include <chrono>
#include <cstdint>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {
namespace {

const char* Begin(const Tensor& tensor) { return static_cast<const char*>(tensor.raw()); }

bool Overlap(const Tensor& a, const Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) return false;
  return Begin(a) < Begin(b) + b.nbytes() && Begin(b) < Begin(a) + a.nbytes();
}

// True when `part` is exactly part `index` of `whole`.
bool IsPart(const Tensor& part, const Tensor& whole, int index) {
  return Begin(part) == Begin(whole) + index * part.nbytes();
}

CommunicatorInfo WithStats(CommunicatorInfo info) {
  if (info.stats == nullptr) info.stats = std::make_shared<TrafficStats>();
  return info;
}

}  // namespace

Communicator::Communicator(CommunicatorInfo info) : info_(WithStats(std::move(info))) {
  MF_CHECK(info_.size >= 1 && info_.rank >= 0 && info_.rank < info_.size)
      << "rank " << info_.rank << " of " << info_.size;
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::AllReduce(const Tensor& in, const Tensor& out) {
  MF_RETURN_IF_ERROR(CheckPair("AllReduce", in, out));
  MF_RETURN_IF_ERROR(CheckSum("AllReduce", in));
  if (in.shape() != out.shape()) {
    return Refuse("AllReduce", absl::StrCat("input ", in.shape().ToString(), " and output ",
                                            out.shape().ToString(), " differ in shape"));
  }
  if (Overlap(in, out) && Begin(in) != Begin(out)) {
    return Refuse("AllReduce", "input and output overlap in part");
  }
  return Issue("AllReduce",
               [&](std::string what) { return DoAllReduce(std::move(what), in, out); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::AllGather(const Tensor& in, const Tensor& out) {
  MF_RETURN_IF_ERROR(CheckPair("AllGather", in, out));
  MF_RETURN_IF_ERROR(CheckParts("AllGather", in, out, "input", "output"));
  return Issue("AllGather",
               [&](std::string what) { return DoAllGather(std::move(what), in, out); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::ReduceScatter(const Tensor& in,
                                                                  const Tensor& out) {
  MF_RETURN_IF_ERROR(CheckPair("ReduceScatter", in, out));
  MF_RETURN_IF_ERROR(CheckSum("ReduceScatter", in));
  MF_RETURN_IF_ERROR(CheckParts("ReduceScatter", out, in, "output", "input"));
  return Issue("ReduceScatter",
               [&](std::string what) { return DoReduceScatter(std::move(what), in, out); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::AllToAllV(const Tensor& in,
                                                              absl::Span<const int64_t> in_rows,
                                                              const Tensor& out,
                                                              absl::Span<const int64_t> out_rows) {
  MF_RETURN_IF_ERROR(CheckPair("AllToAllV", in, out));
  MF_RETURN_IF_ERROR(CheckRows("AllToAllV", in, in_rows, "input"));
  MF_RETURN_IF_ERROR(CheckRows("AllToAllV", out, out_rows, "output"));
  const size_t me = static_cast<size_t>(rank());
  if (in_rows[me] != out_rows[me]) {
    return Refuse("AllToAllV", absl::StrCat("input has ", in_rows[me],
                                            " rows for this rank itself, output ", out_rows[me]));
  }
  const auto in_row = in.shape().dims().subspan(1), out_row = out.shape().dims().subspan(1);
  if (in_row != out_row) {
    return Refuse("AllToAllV", absl::StrCat("rows of input ", in.shape().ToString(), " and output ",
                                            out.shape().ToString(), " differ"));
  }
  if (Overlap(in, out)) return Refuse("AllToAllV", "input and output overlap");
  return Issue("AllToAllV", [&](std::string what) {
    return DoAllToAllV(std::move(what), in, in_rows, out, out_rows);
  });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::Broadcast(const Tensor& data, int root) {
  MF_RETURN_IF_ERROR(Check("Broadcast", data));
  if (root < 0 || root >= size()) {
    return Refuse("Broadcast", absl::StrCat("root ", root, " is outside [0, ", size(), ")"));
  }
  return Issue("Broadcast",
               [&](std::string what) { return DoBroadcast(std::move(what), data, root); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::Send(const Tensor& data, int to) {
  MF_RETURN_IF_ERROR(Check("Send", data));
  MF_RETURN_IF_ERROR(CheckPeer("Send", to));
  return Issue("Send", [&](std::string what) { return DoSend(std::move(what), data, to); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::Recv(const Tensor& data, int from) {
  MF_RETURN_IF_ERROR(Check("Recv", data));
  MF_RETURN_IF_ERROR(CheckPeer("Recv", from));
  return Issue("Recv", [&](std::string what) { return DoRecv(std::move(what), data, from); });
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::Barrier() {
  return Issue("Barrier", [&](std::string what) { return DoBarrier(std::move(what)); });
}

absl::StatusOr<std::shared_ptr<Communicator>> Communicator::Split(int color, int key,
                                                                  absl::string_view name) {
  return DoSplit(color, key, name);
}

absl::Status Communicator::Check(absl::string_view op, const Tensor& tensor) const {
  if (!tensor.defined()) return Refuse(op, "a tensor is undefined");
  if (!tensor.IsContiguous()) {
    return Refuse(op, absl::StrCat("tensor ", tensor.ToString(), " has row pitch ", tensor.pitch(),
                                   "; contiguous rows are needed"));
  }
  return absl::OkStatus();
}

absl::Status Communicator::CheckPair(absl::string_view op, const Tensor& in,
                                     const Tensor& out) const {
  MF_RETURN_IF_ERROR(Check(op, in));
  MF_RETURN_IF_ERROR(Check(op, out));
  if (in.dtype() != out.dtype()) {
    return Refuse(op, absl::StrCat("input is ", DTypeName(in.dtype()), ", output is ",
                                   DTypeName(out.dtype())));
  }
  if (in.device() != out.device()) return Refuse(op, "input and output are on different devices");
  return absl::OkStatus();
}

absl::Status Communicator::CheckSum(absl::string_view op, const Tensor& tensor) const {
  switch (tensor.dtype()) {
    case DType::kF32:
    case DType::kI32:
    case DType::kI64:
      return absl::OkStatus();
    default:
      return Refuse(op, absl::StrCat("sums of ", DTypeName(tensor.dtype()),
                                     " are not defined; use f32, i32 or i64"));
  }
}

absl::Status Communicator::CheckParts(absl::string_view op, const Tensor& part, const Tensor& whole,
                                      absl::string_view part_name,
                                      absl::string_view whole_name) const {
  if (whole.numel() != part.numel() * size()) {
    return Refuse(
        op, absl::StrCat(whole_name, " has ", whole.numel(), " elements, ", part_name, " has ",
                         part.numel(), "; ", size(), " ranks need ", part.numel() * size()));
  }
  if (Overlap(part, whole) && !IsPart(part, whole, rank())) {
    return Refuse(op, absl::StrCat(part_name, " overlaps ", whole_name, " but is not part ", rank(),
                                   " of it"));
  }
  return absl::OkStatus();
}

absl::Status Communicator::CheckRows(absl::string_view op, const Tensor& tensor,
                                     absl::Span<const int64_t> rows, absl::string_view name) const {
  if (tensor.rank() == 0) return Refuse(op, absl::StrCat(name, " is a scalar; it needs rows"));
  if (static_cast<int64_t>(rows.size()) != size()) {
    return Refuse(op,
                  absl::StrCat(name, " has ", rows.size(), " row counts for ", size(), " ranks"));
  }
  int64_t total = 0;
  for (int64_t count : rows) {
    if (count < 0 || count > tensor.dim(0)) {
      return Refuse(
          op, absl::StrCat(name, " row count ", count, " is outside [0, ", tensor.dim(0), "]"));
    }
    total += count;
  }
  if (total != tensor.dim(0)) {
    return Refuse(op, absl::StrCat(name, " row counts add up to ", total, ", the tensor has ",
                                   tensor.dim(0), " rows"));
  }
  return absl::OkStatus();
}

absl::Status Communicator::CheckPeer(absl::string_view op, int peer) const {
  if (peer < 0 || peer >= size()) {
    return Refuse(op, absl::StrCat("peer ", peer, " is outside [0, ", size(), ")"));
  }
  if (peer == rank()) return Refuse(op, absl::StrCat("peer ", peer, " is this rank itself"));
  return absl::OkStatus();
}

absl::Status Communicator::Refuse(absl::string_view op, absl::string_view message) const {
  return absl::InvalidArgumentError(
      absl::StrCat("[", op, "] group '", name(), "' rank ", rank(), " of ", size(), ": ", message));
}

absl::StatusOr<std::unique_ptr<Work>> Communicator::Issue(
    absl::string_view op,
    absl::FunctionRef<absl::StatusOr<std::unique_ptr<Work>>(std::string what)> start) {
  const Work::Time issued = std::chrono::steady_clock::now();
  absl::StatusOr<std::unique_ptr<Work>> work = start(absl::StrCat(
      op, " #", sequence_++, " of group '", name(), "', rank ", rank(), " of ", size()));
  if (work.ok()) (*work)->CountIn(stats(), {name(), std::string(op)}, issued);
  return work;
}

}  // namespace meshfold::comm
