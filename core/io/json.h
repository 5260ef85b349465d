// JSON from outside: nlohmann::json with its exceptions turned into Status at this border.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace meshfold {

// The value of `text`. InvalidArgument, led by `source` (a path), where it is not JSON, repeats a
// key in one object (which of the two counts would be a guess), or nests deeper than 64 levels.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text, absl::string_view source);

// ParseJson of a file of at most `max_bytes`.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path,
                                            int64_t max_bytes = int64_t{1} << 28);

}  // namespace meshfold
