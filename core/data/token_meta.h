// What tools/prepare.py notes beside the tokens that it writes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace meshfold {

// "vocab_size" of PREFIX.meta.json; 0 when there is no such file. InvalidArgument, naming the file,
// where it is not JSON or the size is no whole number above 0.
absl::StatusOr<int64_t> ReadVocabSize(const std::string& prefix);

}  // namespace meshfold
