// Named plugins: one registration line at the end of a plugin's .cc, read-only after start-up.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/check.h"

namespace meshfold {

// Maps names to values of type T (usually a factory function). A registry is filled by static
// registrations before main and only read afterwards, so look-ups need no lock.
template <typename T>
class Registry {
 public:
  // `kind` names the registry in messages: "router", "learning-rate schedule".
  explicit Registry(std::string kind) : kind_(std::move(kind)) {}

  // Adds an entry; a repeated name is a bug.
  bool Add(std::string name, T value) {
    bool added = entries_.emplace(name, std::move(value)).second;
    MF_CHECK(added) << " " << kind_ << " '" << name << "' is registered twice";
    return added;
  }

  // The entry, or NotFound with the known names.
  absl::StatusOr<T> Find(absl::string_view name) const {
    auto it = entries_.find(std::string(name));
    if (it != entries_.end()) return it->second;
    return absl::NotFoundError(
        absl::StrCat("unknown ", kind_, " '", name, "'; known: ", absl::StrJoin(Names(), ", ")));
  }

  // All names in alphabetical order.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : entries_) names.push_back(entry.first);
    return names;
  }

 private:
  std::string kind_;
  std::map<std::string, T> entries_;
};

}  // namespace meshfold

// At namespace scope of a plugin's .cc: MF_REGISTER(RouterRegistry(), "softmax_top_k", MakeIt);
#define MF_REGISTER(registry, name, ...) MF_REGISTER_IMPL(__COUNTER__, registry, name, __VA_ARGS__)
#define MF_REGISTER_IMPL(n, registry, name, ...) MF_REGISTER_IMPL2(n, registry, name, __VA_ARGS__)
#define MF_REGISTER_IMPL2(n, registry, name, ...) \
  [[maybe_unused]] static const bool mf_registered_##n = (registry).Add(name, __VA_ARGS__)
