// Files by shell pattern.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace meshfold {

// Paths that match a shell pattern (*, ?, [abc]), in byte order; none is not an error. A component
// "**" stands for any number of directories, links to directories not followed.
absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern);

}  // namespace meshfold
