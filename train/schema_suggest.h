// What a user meant by a name that is none: the nearest key, section or word.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "train/schema.h"

namespace meshfold::train {

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t EditDistance(absl::string_view a, absl::string_view b);

// How well `name` fits `known`, from 0 to 1 (the same): by letters, and by the words between
// underscores and dots in any order, so that "expert_paralel_size" fits "parallel.expert".
double NameSimilarity(absl::string_view name, absl::string_view known);

// The best of `known`; empty when there are none.
std::string NearestName(absl::string_view name, const std::vector<std::string>& known);

// How a message about the unknown key `name` of `section` ends: where a key of that name or synonym
// belongs, or which key or section comes nearest.
std::string SuggestKey(const Schema& schema, absl::string_view section, absl::string_view name);

}  // namespace meshfold::train
