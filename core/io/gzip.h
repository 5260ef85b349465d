// Gzip files, which include dictzip's (.dz).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace meshfold {

// True for names that end in .gz or .dz.
bool IsGzipName(absl::string_view path);

// The text of a gzip file, all members. ResourceExhausted when it is longer than `max_bytes`,
// DataLoss when the file is cut short or a checksum fails.
absl::StatusOr<std::string> ReadGzipFile(const std::string& path, int64_t max_bytes);

}  // namespace meshfold
