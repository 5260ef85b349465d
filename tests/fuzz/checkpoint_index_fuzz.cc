// ParseIndex must survive any bytes; what it accepts must be written again as it was read, and its
// pieces must hold each element exactly once.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "parallel/checkpoint_index.h"

namespace meshfold::parallel {
namespace {

constexpr int64_t kMaxElements = 4096;

// Counts the elements that the pieces hold, one by one.
void CheckEveryElement(const CheckpointTensorInfo& info) {
  const Box whole = Box::Whole(info.shape);
  std::vector<int> count(static_cast<size_t>(info.shape.numel()), 0);
  for (const CheckpointPiece& piece : info.pieces) {
    int64_t next = 0;
    ForEachCommonRun(piece, whole, [&](int64_t in_piece, int64_t global, int64_t length) {
      if (in_piece != next || length <= 0) std::abort();
      next += length;
      for (int64_t i = 0; i < length; ++i) ++count.at(static_cast<size_t>(global + i));
    });
    if (next != piece.flat_end - piece.flat_begin) std::abort();
  }
  for (int times : count) {
    if (times != 1) std::abort();
  }
}

void CheckIndex(const CheckpointIndex& index) {
  const std::string text = FormatIndex(index).value();
  if (FormatIndex(ParseIndex(text, "written").value()).value() != text) std::abort();
  for (const auto& [name, info] : index.tensors) {
    if (info.shape.numel() <= kMaxElements) CheckEveryElement(info);
  }
}

}  // namespace
}  // namespace meshfold::parallel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  auto index = meshfold::parallel::ParseIndex(text, "fuzz");
  if (index.ok()) meshfold::parallel::CheckIndex(*index);
  return 0;
}
