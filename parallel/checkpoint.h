// Checkpoints without topology: named global tensors in safetensors shards plus an index.
//
// <root>/step_XXXXXXXX/ holds index.json, config.yaml and shard-*.safetensors; <root>/latest holds
// the name of the newest whole one. A tensor is made of pieces (parallel/checkpoint_pieces.h), each
// with a checksum. A checkpoint is written as step_XXXXXXXX.incomplete, made durable, then renamed;
// `latest` moves last (parallel/checkpoint_dir.h). A kill at any moment leaves the previous one
// whole.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/io/safetensors.h"
#include "core/tensor/box.h"
#include "core/tensor/tensor.h"
#include "parallel/checkpoint_index.h"

namespace meshfold::parallel {

struct SaveOptions {
  int64_t keep = 0;  // older checkpoints beyond this many are removed; 0 keeps all
};

// Writes step_<state.step> under `root` and returns its path; a checkpoint of the same step is
// replaced. Tensors are whole, in host memory, and are written from there without copies. One
// writer a root. On any error (a full disk: ResourceExhausted with the path; InvalidArgument for a
// repeated name, a negative step, a tensor on a device) the partial directory is removed and
// earlier checkpoints stay. An error that comes after the new one stands (in moving `latest` or in
// removing surplus ones) leaves both it and the earlier ones.
absl::StatusOr<std::string> SaveCheckpoint(const std::string& root, const CheckpointState& state,
                                           absl::Span<const NamedTensor> tensors,
                                           const SaveOptions& options);

// An opened checkpoint. Immutable: safe to read from many threads.
class Checkpoint {
 public:
  // Reads and checks the index (see ParseIndex), the config's checksum, and that each piece is in
  // its file with the size and dtype that the index says. Errors name file and tensor.
  static absl::StatusOr<Checkpoint> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const CheckpointState& state() const { return state_; }
  const CheckpointTensors& tensors() const { return tensors_; }

  // Fills `dst` (host memory, the tensor's global shape, any pitch; floats convert to any float
  // dtype, integers to integers). NotFound for an unknown name, InvalidArgument with both shapes or
  // dtypes, DataLoss when a checksum does not match; `dst` is then partly written.
  absl::Status Read(const std::string& name, const Tensor& dst) const;
  // As Read, of the elements of `box` alone, whose shape `dst` has. Looks at no piece that holds
  // none of them; a piece's checksum is computed the first time that it is read from.
  absl::Status ReadBox(const std::string& name, const Box& box, const Tensor& dst) const;

 private:
  // Pieces whose checksum was found right, by file and key.
  struct Verified {
    std::mutex mutex;
    std::set<std::pair<std::string, std::string>> pieces;
  };
  absl::Status OpenPiece(const CheckpointTensorInfo& info, const CheckpointPiece& piece);
  absl::StatusOr<const CheckpointTensorInfo*> Find(const std::string& name) const;
  absl::StatusOr<absl::Span<const char>> BytesOf(const CheckpointPiece& piece) const;
  absl::Status ReadPiece(const CheckpointPiece& piece, DType dtype, const Box& box,
                         const Tensor& dst) const;

  std::string directory_;
  CheckpointState state_;
  CheckpointTensors tensors_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_;
  std::shared_ptr<Verified> verified_ = std::make_shared<Verified>();
};

// Directory of the newest whole checkpoint under `root`: what `latest` names, or, when that is
// missing or broken, the highest whole step. NotFound when there is none. Changes nothing.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

}  // namespace meshfold::parallel
