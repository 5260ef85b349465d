// The index of a checkpoint: what it says and its form as text. No file access here, so the parser
// can be fuzzed.
//
// index.json is one object:
//   "format": "meshfold-checkpoint", "version": 1, "step": integer,
//   "integers": {name: integer},
//   "config_xxh3": checksum of config.yaml (may be absent),
//   "tensors": {name: {"dtype": "bf16", "shape": [..], "pieces": [piece]}},
//   "xxh3": checksum of this object without this member, as JSON without blanks and with sorted
//           keys (may be absent)
// and a piece is {"file", "key": where its bytes are, "start": [..], "extent": [..] the box,
// "flat": [begin, end] the part of the box, "xxh3": checksum of its bytes}. Checksums are XXH3-64
// as 16 hex digits. Unknown members are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "parallel/checkpoint_pieces.h"

namespace meshfold::parallel {

// What is saved besides tensors.
struct CheckpointState {
  int64_t step = 0;                         // optimizer steps done
  std::map<std::string, int64_t> integers;  // loader and rng state
  std::string config_yaml;                  // the run's resolved config
};

struct CheckpointIndex {
  CheckpointState state;        // config_yaml stands in a file of its own and is empty here
  std::string config_checksum;  // of config.yaml; empty: not recorded
  CheckpointTensors tensors;
};

// XXH3-64 of `bytes` as 16 hex digits, and the text of a value had in parts.
std::string ChecksumOf(absl::string_view bytes);
std::string ChecksumText(uint64_t value);

// The "tensors" of an index alone, as one line: how ranks tell each other what they wrote. The
// pieces need not tile their tensors. Errors as of FormatIndex and ParseIndex.
absl::StatusOr<std::string> FormatTensors(const CheckpointTensors& tensors);
absl::StatusOr<CheckpointTensors> ParseTensors(absl::string_view text, absl::string_view source);

// The text of index.json. InvalidArgument when a name is not UTF-8.
absl::StatusOr<std::string> FormatIndex(const CheckpointIndex& index);

// Reads what FormatIndex wrote. InvalidArgument, naming `source` (a path) and the tensor, for
// anything else: wrong types, numbers or sizes that overflow, file names that leave the directory,
// one stored tensor used twice, pieces that do not tile their tensor, a checksum that does not
// match. FailedPrecondition for another version of the format. Time and memory are bounded by the
// length of `text`, not by the sizes that it names.
absl::StatusOr<CheckpointIndex> ParseIndex(absl::string_view text, absl::string_view source);

}  // namespace meshfold::parallel
