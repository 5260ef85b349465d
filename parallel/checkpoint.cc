#include "parallel/checkpoint.h"

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

// The same error, led by where it is.
absl::Status Within(absl::string_view directory, absl::string_view tensor,
                    const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("[Checkpoint] tensor '", tensor, "' of '",
                                                  directory, "': ", status.message()));
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

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

bool IsInside(const Box& box, const Shape& shape) {
  bool inside = box.start.size() == static_cast<size_t>(shape.rank()) &&
                box.extent.size() == box.start.size();
  for (size_t d = 0; inside && d < box.start.size(); ++d) {
    inside = box.start[d] >= 0 && box.extent[d] >= 0 &&
             box.start[d] <= shape[static_cast<int>(d)] - box.extent[d];
  }
  return inside;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  const std::string index_path = JoinPath(directory, kCheckpointIndexName);
  const std::string config_path = JoinPath(directory, kCheckpointConfigName);
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

absl::StatusOr<const CheckpointTensorInfo*> Checkpoint::Find(const std::string& name) const {
  auto it = tensors_.find(name);
  if (it != tensors_.end()) return &it->second;
  return absl::NotFoundError(
      absl::StrCat("[Checkpoint] '", directory_, "' has no tensor '", name, "'"));
}

absl::StatusOr<absl::Span<const char>> Checkpoint::BytesOf(const CheckpointPiece& piece) const {
  const SafetensorsFile& file = *files_.at(piece.file);
  MF_ASSIGN_OR_RETURN(absl::Span<const char> bytes, file.bytes(piece.key));
  {
    std::lock_guard<std::mutex> lock(verified_->mutex);
    if (verified_->pieces.count({piece.file, piece.key}) > 0) return bytes;
  }
  const std::string found = ChecksumOf(absl::string_view(bytes.data(), bytes.size()));
  if (found != piece.checksum) {
    return absl::DataLossError(absl::StrCat("'", piece.key, "' of '", file.path(),
                                            "' has the checksum ", found, ", the index says ",
                                            piece.checksum, "; the file is damaged"));
  }
  std::lock_guard<std::mutex> lock(verified_->mutex);
  verified_->pieces.emplace(piece.file, piece.key);
  return bytes;
}

absl::Status Checkpoint::ReadPiece(const CheckpointPiece& piece, DType dtype, const Box& box,
                                   const Tensor& dst) const {
  const FileDType stored = FileDTypeOf(dtype);
  absl::StatusOr<absl::Span<const char>> bytes = absl::Span<const char>();
  absl::Status status;
  ForEachCommonRun(piece, box, [&](int64_t from, int64_t to, int64_t count) {
    if (status.ok() && bytes.ok() && bytes->empty()) bytes = BytesOf(piece);
    status.Update(bytes.status());
    if (status.ok()) status = ReadRun(stored, bytes->data() + from * SizeOf(dtype), dst, to, count);
  });
  return status;
}

absl::Status Checkpoint::Read(const std::string& name, const Tensor& dst) const {
  MF_ASSIGN_OR_RETURN(const CheckpointTensorInfo* info, Find(name));
  if (dst.shape() != info->shape) {
    return Within(directory_, name,
                  Bad(absl::StrCat("has shape ", info->shape.ToString(), ", ",
                                   dst.shape().ToString(), " is wanted")));
  }
  return ReadBox(name, Box::Whole(info->shape), dst);
}

absl::Status Checkpoint::ReadBox(const std::string& name, const Box& box, const Tensor& dst) const {
  MF_ASSIGN_OR_RETURN(const CheckpointTensorInfo* info, Find(name));
  if (!IsInside(box, info->shape)) {
    return Within(directory_, name,
                  Bad(absl::StrCat("has shape ", info->shape.ToString(), ", ", box.ToString(),
                                   " of it is wanted")));
  }
  if (dst.shape() != box.shape()) {
    return Within(directory_, name,
                  Bad(absl::StrCat("is wanted in ", box.ToString(), ", into a tensor of shape ",
                                   dst.shape().ToString())));
  }
  for (const CheckpointPiece& piece : info->pieces) {
    MF_RETURN_IF_ERROR(Within(directory_, name, ReadPiece(piece, info->dtype, box, dst)));
  }
  return absl::OkStatus();
}

}  // namespace meshfold::parallel
