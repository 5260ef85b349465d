// One bounded YAML document: the text may come from anywhere, so its size, its nesting and the work
// that its aliases cause are checked before a value is looked at.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "yaml-cpp/yaml.h"

namespace meshfold::train {

// Calls `read` with the root of `yaml`, a null node for an empty text, and returns its result.
// InvalidArgument, led by `place` and the line, when the text is above 1 MiB, is no YAML, holds
// more than one document, nests deeper than 32 levels or has more than 100,000 values with its
// aliases expanded; exceptions of the YAML library while `read` runs come back the same way.
absl::Status WithYamlDocument(absl::string_view yaml, absl::string_view place,
                              const std::function<absl::Status(const YAML::Node&)>& read);

}  // namespace meshfold::train
