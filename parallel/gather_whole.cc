#include "parallel/gather_whole.h"

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/wait.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "core/tensor/box.h"
#include "parallel/checkpoint_index.h"
#include "parallel/checkpoint_pieces.h"
#include "parallel/rank_texts.h"
#include "parallel/sharding.h"
#include "parallel/state_tensors.h"

namespace meshfold::parallel {
namespace {

// What a rank sends, in the order in which it does: by name.
struct Share {
  CheckpointTensors described;
  std::map<std::string, Tensor> tensors;
};

absl::Status Check(const GatherInput& input, const ShardingContext& sharding) {
  const Parameter& parameter = *input.parameter;
  MF_RETURN_IF_ERROR(CheckPartOf(parameter, sharding));
  const Tensor& tensor = input.tensor;
  if (!tensor.defined() || tensor.device() != DeviceKind::kHost) {
    return absl::InvalidArgumentError("is not in host memory");
  }
  if (tensor.shape() == parameter.part.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("has shape ", tensor.shape().ToString(),
                                                 ", its part ", parameter.part.ToString(),
                                                 " another one"));
}

absl::Status Named(absl::string_view name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("[GatherWhole] '", name, "' ", status.message()));
}

CheckpointTensorInfo Describe(const GatherInput& input, int64_t rank) {
  CheckpointTensorInfo info;
  info.dtype = input.tensor.dtype();
  info.shape = input.parameter->shape;
  CheckpointPiece piece;
  piece.file = absl::StrCat("rank ", rank);
  piece.key = input.name;
  piece.start = input.parameter->part.start;
  piece.extent = input.parameter->part.extent;
  piece.flat_end = input.tensor.numel();
  piece.checksum = ChecksumText(0);  // not looked at: nothing is stored
  info.pieces.push_back(std::move(piece));
  return info;
}

// The first copies that this rank holds.
absl::StatusOr<Share> OwnShare(const ShardingContext& sharding,
                               absl::Span<const GatherInput> inputs) {
  const int64_t rank = sharding.world.rank();
  const int64_t stage = sharding.ranks.dense.coordinate(rank, "pp");
  Share share;
  std::set<absl::string_view> names;
  for (const GatherInput& input : inputs) {
    absl::Status status = Check(input, sharding);
    if (status.ok() && !names.insert(input.name).second) {
      status = absl::InvalidArgumentError("is given twice");
    }
    if (!status.ok()) return Named(input.name, status);
    if (!IsFirstStage(*input.parameter, stage)) continue;
    if (!IsFirstCopy(input.parameter->layout, sharding.ranks, rank)) continue;
    share.tensors.emplace(input.name, input.tensor);
    share.described.emplace(input.name, Describe(input, rank));
  }
  return share;
}

// On rank 0, from all ranks' descriptions: where the whole tensors will stand.
struct Plan {
  std::vector<CheckpointTensors> shares;  // by rank
  std::map<std::string, Tensor> whole;
};

absl::StatusOr<Plan> MakePlan(const std::vector<std::string>& texts) {
  Plan plan;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    MF_ASSIGN_OR_RETURN(CheckpointTensors share,
                        ParseTensors(texts[rank], absl::StrCat("what rank ", rank, " holds")));
    plan.shares.push_back(std::move(share));
  }
  const absl::StatusOr<CheckpointTensors> merged = MergeShards(plan.shares);
  if (!merged.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("[GatherWhole] ", merged.status().message()));
  }
  try {
    for (const auto& [name, info] : *merged) {
      plan.whole[name] = Tensor::Contiguous(info.shape, info.dtype, SystemHostAllocator());
    }
  } catch (const StatusError& error) {
    return error.status();
  }
  return plan;
}

// `tensor` without gaps between its rows.
Tensor Dense(const Tensor& tensor) {
  if (tensor.IsContiguous()) return tensor;
  const Tensor dense = Tensor::Contiguous(tensor.shape(), tensor.dtype(), SystemHostAllocator());
  CopyIntoWhole(tensor, Box::Whole(tensor.shape()), dense);
  return dense;
}

absl::Status SendShare(comm::Communicator& world, const Share& share) {
  for (const auto& [name, tensor] : share.tensors) {
    if (tensor.numel() == 0) continue;
    MF_RETURN_IF_ERROR(comm::WaitFor(world.Send(Dense(tensor), 0), world));
  }
  return absl::OkStatus();
}

absl::Status ReceiveShare(comm::Communicator& world, int rank, const Plan& plan) {
  for (const auto& [name, info] : plan.shares[static_cast<size_t>(rank)]) {
    const Box box{info.pieces[0].start, info.pieces[0].extent};
    if (box.shape().numel() == 0) continue;
    const Tensor& whole = plan.whole.at(name);
    const bool in_place = box.IsWhole(info.shape);
    const Tensor part =
        in_place ? whole : Tensor::Contiguous(box.shape(), info.dtype, SystemHostAllocator());
    MF_RETURN_IF_ERROR(comm::WaitFor(world.Recv(part, rank), world));
    if (!in_place) CopyIntoWhole(part, box, whole);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::map<std::string, Tensor>> GatherWhole(const ShardingContext& sharding,
                                                          absl::Span<const GatherInput> inputs) {
  comm::Communicator& world = sharding.world;
  absl::StatusOr<Share> own = OwnShare(sharding, inputs);
  const absl::StatusOr<std::string> text =
      own.ok() ? FormatTensors(own->described) : absl::StatusOr<std::string>(own.status());
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, text.status()));
  MF_ASSIGN_OR_RETURN(const std::vector<std::string> texts, GatherTexts(world, *text));
  absl::StatusOr<Plan> plan = MakePlan(texts);
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, plan.status()));
  if (world.rank() != 0) {
    MF_RETURN_IF_ERROR(SendShare(world, *own));
    return std::map<std::string, Tensor>();
  }
  for (const auto& [name, info] : own->described) {
    const Box box{info.pieces[0].start, info.pieces[0].extent};
    CopyIntoWhole(own->tensors.at(name), box, plan->whole.at(name));
  }
  for (int rank = 1; rank < world.size(); ++rank) {
    MF_RETURN_IF_ERROR(ReceiveShare(world, rank, *plan));
  }
  return std::move(plan->whole);
}

}  // namespace meshfold::parallel
