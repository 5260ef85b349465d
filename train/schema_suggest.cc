#include "train/schema_suggest.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace meshfold::train {
namespace {

constexpr size_t kLongestName = 100;        // longer ones are compared by their beginning
constexpr double kSameSectionBonus = 0.15;  // between equally near names, the section written wins

std::vector<std::string> Words(absl::string_view name) {
  return absl::StrSplit(absl::AsciiStrToLower(name), absl::ByAnyChar("._- "), absl::SkipEmpty());
}

// Nearly the same word: one typing error in four letters.
bool Alike(const std::string& a, const std::string& b) {
  const size_t shorter = std::min(a.size(), b.size()), longer = std::max(a.size(), b.size());
  return longer - shorter <= shorter / 4 && EditDistance(a, b) <= shorter / 4;
}

// Twice the number of words in common over the number of words.
double WordSimilarity(absl::string_view name, absl::string_view known) {
  const std::vector<std::string> words = Words(name);
  std::vector<std::string> left = Words(known);
  const size_t total = words.size() + left.size();
  size_t common = 0;
  for (const std::string& word : words) {
    const auto match = std::find_if(left.begin(), left.end(),
                                    [&word](const std::string& w) { return Alike(word, w); });
    if (match == left.end()) continue;
    left.erase(match);
    ++common;
  }
  return total == 0 ? 0 : 2.0 * static_cast<double>(common) / static_cast<double>(total);
}

double LetterSimilarity(absl::string_view a, absl::string_view b) {
  const size_t longer = std::max<size_t>(1, std::max(a.size(), b.size()));
  return 1.0 - static_cast<double>(EditDistance(a, b)) / static_cast<double>(longer);
}

bool IsCalled(const Key& key, absl::string_view name) {
  return key.name == name ||
         std::find(key.synonyms.begin(), key.synonyms.end(), name) != key.synonyms.end();
}

double KeySimilarity(const Key& key, absl::string_view section, absl::string_view name) {
  // In another section the name alone says less than the name with its section.
  const bool same_section = key.section == section;
  double best = NameSimilarity(name, key.name) * (same_section ? 1.0 : 0.9);
  best = std::max(best, NameSimilarity(name, key.path()));
  best = std::max(best, NameSimilarity(JoinPath(section, name), key.path()));
  for (const std::string& synonym : key.synonyms) {
    best = std::max(best, LetterSimilarity(name, synonym));
  }
  return best + (same_section ? kSameSectionBonus : 0.0);
}

// "section 'optimizer'", for every section that has a key of this very name.
std::vector<std::string> HomesOf(const Schema& schema, absl::string_view name) {
  std::vector<std::string> homes;
  for (const Key& key : schema.keys()) {
    if (!IsCalled(key, name)) continue;
    const bool same_name = key.name == name;
    homes.push_back(same_name ? absl::StrCat("section '", key.section, "'")
                              : absl::StrCat("'", key.path(), "'"));
  }
  return homes;
}

}  // namespace

size_t EditDistance(absl::string_view a, absl::string_view b) {
  a = a.substr(0, kLongestName);
  b = b.substr(0, kLongestName);
  // Rows i - 2, i - 1 and i of the table (optimal string alignment).
  std::array<size_t, kLongestName + 1> before{}, last{}, row{};
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

double NameSimilarity(absl::string_view name, absl::string_view known) {
  return std::max(LetterSimilarity(name, known),
                  WordSimilarity(name.substr(0, kLongestName), known));
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& known) {
  const auto best = std::max_element(known.begin(), known.end(),
                                     [name](const std::string& a, const std::string& b) {
                                       return NameSimilarity(name, a) < NameSimilarity(name, b);
                                     });
  return best == known.end() ? "" : *best;
}

std::string SuggestKey(const Schema& schema, absl::string_view section, absl::string_view name) {
  const std::vector<std::string> homes = HomesOf(schema, name);
  if (!homes.empty() && !schema.sections().empty()) {
    return absl::StrCat("'", name, "' belongs to ", absl::StrJoin(homes, " or "));
  }
  std::string nearest;
  double best = -1;
  for (const Key& key : schema.keys()) {
    if (key.path() == name) {  // "optimizer.lr: 1" at the root
      return absl::StrCat("write '", key.name, "' inside section '", key.section, "'");
    }
    const double similarity = KeySimilarity(key, section, name);
    if (similarity > best) {
      best = similarity;
      nearest = key.path();
    }
  }
  for (const Schema::SectionInfo& other : schema.sections()) {
    const double similarity = LetterSimilarity(JoinPath(section, name), other.path) +
                              (section.empty() ? kSameSectionBonus : 0.0);
    if (similarity > best) {
      best = similarity;
      nearest = other.path;
    }
  }
  return absl::StrCat("the nearest valid key is '", nearest, "'");
}

}  // namespace meshfold::train
