// The header of a safetensors file: parsing that trusts nothing, and formatting as Hugging Face's
// library does it. No file access here, so the parser can be fuzzed.
//
// A file is an 8-byte little-endian header length n, n bytes of JSON that map each tensor's name to
// {"dtype", "shape", "data_offsets": [begin, end]} (and "__metadata__" to strings), then the data.
// Offsets count from the start of the data, elements are little-endian and row-major, and the
// tensors cover the data without hole or overlap.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/io/file_dtype.h"

namespace meshfold {

// One tensor of a file. Offsets are bytes from the start of the data.
struct SafetensorsInfo {
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsInfo> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0;  // bytes from the start of the file
};

// Longest header that is read or written, in bytes (the format's own limit).
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Reads the header of a file whose bytes are `file` (or its first bytes: all of the header, with
// `file_bytes` the length of the whole). InvalidArgument, led by `path`, for every departure from
// the format: lengths, JSON, repeated names, types, sizes that overflow or disagree with the
// offsets, offsets outside the data, holes, overlaps.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const char> file,
                                                         int64_t file_bytes,
                                                         absl::string_view path);

// shape times dtype in bytes; InvalidArgument when an extent is negative or the product overflows.
absl::StatusOr<int64_t> TensorBytes(FileDType dtype, absl::Span<const int64_t> shape);

// What a writer knows of a tensor before its bytes.
struct TensorSpec {
  std::string name;
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape;
};

// Sorts as Hugging Face's writer does: wide types first, then by name.
void SortForSafetensors(std::vector<TensorSpec>& specs);

// The file's first bytes (length and JSON, padded by spaces to a multiple of 8) for tensors that
// follow in the order given. InvalidArgument for repeated or reserved names, names that are not
// UTF-8, sizes that overflow, a header over the limit.
absl::StatusOr<std::string> FormatSafetensorsHeader(
    absl::Span<const TensorSpec> specs, const std::map<std::string, std::string>& metadata);

}  // namespace meshfold
