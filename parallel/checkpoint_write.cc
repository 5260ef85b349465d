#include "parallel/checkpoint_write.h"

#include <xxhash.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint_dir.h"

namespace meshfold::parallel {
namespace {

absl::Status Bad(absl::string_view tensor, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("[Checkpoint] tensor '", tensor, "' ", what));
}

// Of the logical elements in row-major order, padding left out.
std::string ElementsChecksum(const Tensor& tensor) {
  const size_t row_bytes = static_cast<size_t>(tensor.cols() * SizeOf(tensor.dtype()));
  const char* base = static_cast<const char*>(tensor.raw());
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                 XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    XXH3_64bits_update(state.get(), base + r * tensor.pitch() * SizeOf(tensor.dtype()), row_bytes);
  }
  return ChecksumText(XXH3_64bits_digest(state.get()));
}

CheckpointTensorInfo Describe(const TensorPart& part, const std::string& file) {
  CheckpointTensorInfo info;
  info.dtype = part.tensor.dtype();
  info.shape = part.shape;
  CheckpointPiece piece;
  piece.file = file;
  piece.key = part.name;
  piece.start = part.box.start;
  piece.extent = part.box.extent;
  piece.flat_end = part.tensor.numel();
  piece.checksum = ElementsChecksum(part.tensor);
  info.pieces.push_back(std::move(piece));
  return info;
}

absl::Status WriteIndex(const std::string& directory, const CheckpointState& state,
                        CheckpointTensors tensors) {
  CheckpointIndex index;
  index.state = state;
  index.config_checksum = ChecksumOf(state.config_yaml);
  index.tensors = std::move(tensors);
  MF_RETURN_IF_ERROR(WriteFile(JoinPath(directory, kCheckpointConfigName), state.config_yaml));
  MF_ASSIGN_OR_RETURN(std::string text, FormatIndex(index));
  return WriteFile(JoinPath(directory, kCheckpointIndexName), text);
}

}  // namespace

std::string ShardName(int64_t rank) {
  char name[48];
  std::snprintf(name, sizeof(name), "shard-%05lld.safetensors", static_cast<long long>(rank));
  return name;
}

absl::Status StartCheckpoint(const std::string& root, int64_t step) {
  if (step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("[Checkpoint] negative step ", step));
  }
  MF_RETURN_IF_ERROR(PrepareCheckpointRoot(root));
  return MakeDirs(IncompletePath(root, step));
}

absl::StatusOr<CheckpointTensors> WriteShard(const std::string& directory, const std::string& file,
                                             absl::Span<const TensorPart> parts) {
  CheckpointTensors described;
  std::vector<NamedTensor> tensors;
  for (const TensorPart& part : parts) {
    if (!part.tensor.defined() || part.tensor.device() != DeviceKind::kHost) {
      return Bad(part.name, "is not in host memory");
    }
    if (part.tensor.shape() != part.box.shape()) {
      return Bad(part.name,
                 absl::StrCat("has shape ", part.tensor.shape().ToString(), ", its part ",
                              part.box.ToString(), " of ", part.shape.ToString(), " another one"));
    }
    if (!described.emplace(part.name, Describe(part, file)).second) {
      return Bad(part.name, "is given twice");
    }
    tensors.push_back({part.name, part.tensor});
  }
  MF_RETURN_IF_ERROR(WriteSafetensors(JoinPath(directory, file), tensors));
  return described;
}

absl::Status FinishCheckpoint(const std::string& root, const CheckpointState& state,
                              CheckpointTensors tensors, const SaveOptions& options) {
  absl::Status status = WriteIndex(IncompletePath(root, state.step), state, std::move(tensors));
  if (status.ok()) status = PublishCheckpoint(root, state.step);
  if (!status.ok()) {
    AbandonCheckpoint(root, state.step);
    return status;
  }
  return options.keep > 0 ? PruneCheckpoints(root, options.keep, state.step) : absl::OkStatus();
}

void AbandonCheckpoint(const std::string& root, int64_t step) {
  RemoveTree(IncompletePath(root, step)).IgnoreError();  // the first error is the one to report
}

absl::StatusOr<std::string> SaveCheckpoint(const std::string& root, const CheckpointState& state,
                                           absl::Span<const NamedTensor> tensors,
                                           const SaveOptions& options) {
  std::vector<TensorPart> parts;
  for (const auto& [name, tensor] : tensors) {
    parts.push_back({name, tensor, tensor.shape(), Box::Whole(tensor.shape())});
  }
  MF_RETURN_IF_ERROR(StartCheckpoint(root, state.step));
  absl::StatusOr<CheckpointTensors> written =
      WriteShard(IncompletePath(root, state.step), ShardName(0), parts);
  if (!written.ok()) {
    AbandonCheckpoint(root, state.step);
    return written.status();
  }
  MF_RETURN_IF_ERROR(FinishCheckpoint(root, state, *std::move(written), options));
  return StepPath(root, state.step);
}

}  // namespace meshfold::parallel
