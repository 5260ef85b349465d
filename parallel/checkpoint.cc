#include "parallel/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/elements.h"
#include "core/io/file.h"
#include "parallel/checkpoint_dir.h"

namespace meshfold::parallel {
namespace {

constexpr char kConfigName[] = "config.yaml";
constexpr char kShardName[] = "shard-00000.safetensors";

// The same error, led by where it is.
absl::Status Within(absl::string_view directory, absl::string_view tensor,
                    const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("[Checkpoint] tensor '", tensor, "' of '",
                                                  directory, "': ", status.message()));
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

CheckpointTensorInfo DescribeWhole(const NamedTensor& named) {
  CheckpointTensorInfo info;
  info.dtype = named.tensor.dtype();
  info.shape = named.tensor.shape();
  CheckpointPiece piece;
  piece.file = kShardName;
  piece.key = named.name;
  piece.start.assign(static_cast<size_t>(info.shape.rank()), 0);
  piece.extent.assign(info.shape.dims().begin(), info.shape.dims().end());
  piece.flat_end = info.shape.numel();
  piece.checksum = ElementsChecksum(named.tensor);
  info.pieces.push_back(std::move(piece));
  return info;
}

absl::Status WriteInto(const std::string& directory, const CheckpointState& state,
                       absl::Span<const NamedTensor> tensors) {
  if (state.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("[Checkpoint] negative step ", state.step));
  }
  CheckpointIndex index;
  index.state = state;
  index.config_checksum = ChecksumOf(state.config_yaml);
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined() || named.tensor.device() != DeviceKind::kHost) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Checkpoint] tensor '", named.name, "' is not in host memory"));
    }
    if (!index.tensors.emplace(named.name, DescribeWhole(named)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Checkpoint] tensor '", named.name, "' is given twice"));
    }
  }
  MF_RETURN_IF_ERROR(MakeDirs(directory));
  MF_RETURN_IF_ERROR(WriteSafetensors(JoinPath(directory, kShardName), tensors));
  MF_RETURN_IF_ERROR(WriteFile(JoinPath(directory, kConfigName), state.config_yaml));
  MF_ASSIGN_OR_RETURN(std::string text, FormatIndex(index));
  return WriteFile(JoinPath(directory, kCheckpointIndexName), text);
}

// Fills elements [begin, begin + count) of the row-major order of `dst` from dense ones at `src`.
absl::Status ReadRun(FileDType dtype, const char* src, const Tensor& dst, int64_t begin,
                     int64_t count) {
  const Tensor matrix = dst.AsMatrix();
  const int64_t cols = matrix.cols();
  while (count > 0) {
    const int64_t row = begin / cols, col = begin % cols;
    const bool is_whole_rows = col == 0 && count >= cols;
    const int64_t rows = is_whole_rows ? count / cols : 1;
    const int64_t width = is_whole_rows ? cols : std::min(cols - col, count);
    MF_RETURN_IF_ERROR(ReadElements(dtype, src, matrix.Narrow(row, rows).NarrowCols(col, width)));
    src += rows * width * SizeOf(dtype);
    begin += rows * width;
    count -= rows * width;
  }
  return absl::OkStatus();
}

absl::Status ReadPiece(const SafetensorsFile& file, const CheckpointPiece& piece,
                       const CheckpointTensorInfo& info, const Tensor& dst) {
  MF_ASSIGN_OR_RETURN(absl::Span<const char> bytes, file.bytes(piece.key));
  const std::string found = ChecksumOf(absl::string_view(bytes.data(), bytes.size()));
  if (found != piece.checksum) {
    return absl::DataLossError(absl::StrCat("'", piece.key, "' of '", file.path(),
                                            "' has the checksum ", found, ", the index says ",
                                            piece.checksum, "; the file is damaged"));
  }
  const FileDType dtype = FileDTypeOf(info.dtype);
  absl::Status status;
  ForEachRun(piece, info.shape, [&](int64_t global, int64_t in_piece, int64_t count) {
    if (!status.ok()) return;
    status = ReadRun(dtype, bytes.data() + in_piece * SizeOf(dtype), dst, global, count);
  });
  return status;
}

}  // namespace

absl::StatusOr<std::string> SaveCheckpoint(const std::string& root, const CheckpointState& state,
                                           absl::Span<const NamedTensor> tensors,
                                           const SaveOptions& options) {
  MF_RETURN_IF_ERROR(PrepareCheckpointRoot(root));
  const std::string partial = IncompletePath(root, state.step);
  absl::Status status = WriteInto(partial, state, tensors);  // each file durably
  if (status.ok()) status = PublishCheckpoint(root, state.step);
  if (!status.ok()) {
    RemoveTree(partial).IgnoreError();  // the first error is the one to report
    return status;
  }
  if (options.keep > 0) MF_RETURN_IF_ERROR(PruneCheckpoints(root, options.keep, state.step));
  return StepPath(root, state.step);
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const std::string index_path = JoinPath(directory, kCheckpointIndexName);
  const std::string config_path = JoinPath(directory, kConfigName);
  MF_ASSIGN_OR_RETURN(std::string text, ReadFile(index_path, int64_t{1} << 30));
  MF_ASSIGN_OR_RETURN(CheckpointIndex index, ParseIndex(text, index_path));
  MF_ASSIGN_OR_RETURN(index.state.config_yaml, ReadFile(config_path, int64_t{1} << 26));
  const std::string found = ChecksumOf(index.state.config_yaml);
  if (!index.config_checksum.empty() && found != index.config_checksum) {
    return absl::DataLossError(absl::StrCat("[Checkpoint] '", config_path, "' has the checksum ",
                                            found, ", the index says ", index.config_checksum,
                                            "; the file is damaged"));
  }
  checkpoint.state_ = std::move(index.state);
  checkpoint.tensors_ = std::move(index.tensors);
  for (const auto& [name, info] : checkpoint.tensors_) {
    for (const CheckpointPiece& piece : info.pieces) {
      MF_RETURN_IF_ERROR(Within(directory, name, checkpoint.OpenPiece(info, piece)));
    }
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenPiece(const CheckpointTensorInfo& info, const CheckpointPiece& piece) {
  std::shared_ptr<const SafetensorsFile>& file = files_[piece.file];
  if (file == nullptr) {
    MF_ASSIGN_OR_RETURN(file, SafetensorsFile::Open(JoinPath(directory_, piece.file)));
  }
  MF_ASSIGN_OR_RETURN(SafetensorsInfo stored, file->info(piece.key));
  const int64_t stored_count = Shape(stored.shape).numel();
  const int64_t count = piece.flat_end - piece.flat_begin;
  const FileDType dtype = FileDTypeOf(info.dtype);
  if (stored_count == count && stored.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "'", piece.key, "' of '", file->path(), "' is ", stored_count, " elements of ",
      FileDTypeName(stored.dtype), ", the index says ", count, " of ", FileDTypeName(dtype)));
}

absl::Status Checkpoint::Read(const std::string& name, const Tensor& dst) const {
  auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return absl::NotFoundError(
        absl::StrCat("[Checkpoint] '", directory_, "' has no tensor '", name, "'"));
  }
  const CheckpointTensorInfo& info = it->second;
  if (dst.shape() != info.shape) {
    return Within(directory_, name,
                  absl::InvalidArgumentError(absl::StrCat("has shape ", info.shape.ToString(), ", ",
                                                          dst.shape().ToString(), " is wanted")));
  }
  for (const CheckpointPiece& piece : info.pieces) {
    MF_RETURN_IF_ERROR(
        Within(directory_, name, ReadPiece(*files_.at(piece.file), piece, info, dst)));
  }
  return absl::OkStatus();
}

}  // namespace meshfold::parallel
