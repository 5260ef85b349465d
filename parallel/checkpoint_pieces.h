// Pieces of tensors in a checkpoint: where they lie, and the check that they tile their tensor.
// Plain arithmetic on shapes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"

namespace meshfold::parallel {

// Elements [flat_begin, flat_end), in row-major order, of the box [start, start + extent) of the
// global tensor: shards on any dim and flat slices of shards can be described.
struct CheckpointPiece {
  std::string file;                    // name inside the checkpoint's directory
  std::string key;                     // name inside the file
  std::vector<int64_t> start, extent;  // one entry a dim
  int64_t flat_begin = 0, flat_end = 0;
  std::string checksum;  // of the piece's bytes: XXH3-64 as 16 hex digits
};

struct CheckpointTensorInfo {
  DType dtype = DType::kF32;
  Shape shape;  // global
  std::vector<CheckpointPiece> pieces;
};

// By name.
using CheckpointTensors = std::map<std::string, CheckpointTensorInfo>;

// InvalidArgument unless every element of the tensor is in exactly one piece: the parts of each box
// cover it once, distinct boxes do not overlap, and all together they cover the tensor. Also for
// sizes that overflow, more than 32 dims and more than 16384 boxes. The time depends on the number
// of pieces only.
absl::Status CheckTiling(const CheckpointTensorInfo& info);

// All pieces of all `shards`. InvalidArgument, "tensor '<name>' ...", where shards differ in its
// dtype or shape or where the pieces do not tile it.
absl::StatusOr<CheckpointTensors> MergeShards(absl::Span<const CheckpointTensors> shards);

// The runs of elements that lie in the piece and in `box` too: copy(piece_flat, box_flat, count)
// with piece_flat counted from the piece's first element and box_flat in the box's row-major order.
// Both ascend. The box lies inside the tensor, as the piece does.
void ForEachCommonRun(const CheckpointPiece& piece, const Box& box, RunVisitor copy);

}  // namespace meshfold::parallel
