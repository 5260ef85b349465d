#include "train/schema.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/check.h"
#include "memory/pool_limits.h"
#include "nlohmann/json.hpp"

namespace meshfold::train {
namespace {

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

// Plain where YAML reads the same text back as a string, quoted (JSON quoting is YAML) elsewhere.
std::string QuoteYaml(const std::string& text) {
  const bool word_like = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) ||
                                           text[0] == '/' || text[0] == '_');
  const bool plain_characters = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-';
  });
  std::string lower = text;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static constexpr absl::string_view kReserved[] = {"null", "true", "false", "yes", "no",
                                                    "on",   "off",  "y",     "n"};
  const bool reserved = std::count(std::begin(kReserved), std::end(kReserved), lower) > 0;
  if (word_like && plain_characters && !reserved) return text;
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string RecordsText(const Key::Records& records) {
  std::vector<std::string> entries;
  for (size_t i = 0; i < records.size(); ++i) {
    Schema entry;
    records.declare(i, entry);
    std::vector<std::string> pairs;
    for (const Key& key : entry.keys()) {
      pairs.push_back(absl::StrCat(key.name, ": ", key.ValueText()));
    }
    entries.push_back(absl::StrCat("{", absl::StrJoin(pairs, ", "), "}"));
  }
  return absl::StrCat("[", absl::StrJoin(entries, ", "), "]");
}

std::string RecordKeys(const Key::Records& records) {
  Schema entry;
  records.declare(records.size(), entry);
  std::vector<std::string> names;
  for (const Key& key : entry.keys()) names.push_back(key.name);
  return absl::StrJoin(names, ", ");
}

std::string BoundText(double bound) {
  // Bounds of whole numbers are printed as such.
  if (bound == std::floor(bound) && std::abs(bound) < 1e15) {
    return absl::StrCat(static_cast<int64_t>(bound));
  }
  return FloatText(bound);
}

}  // namespace

Key& Key::AtLeast(double value) {
  min = value;
  min_is_open = false;
  return *this;
}

Key& Key::AtMost(double value) {
  max = value;
  max_is_open = false;
  return *this;
}

Key& Key::Above(double value) {
  min = value;
  min_is_open = true;
  return *this;
}

Key& Key::Below(double value) {
  max = value;
  max_is_open = true;
  return *this;
}

Key& Key::Unit(std::string text) {
  unit = std::move(text);
  return *this;
}

Key& Key::Names(std::vector<std::string> known) {
  names = std::move(known);
  return *this;
}

Key& Key::Synonyms(std::vector<std::string> others) {
  synonyms = std::move(others);
  return *this;
}

Key& Key::Word(std::string text) {
  word = std::move(text);
  return *this;
}

std::string Key::path() const { return JoinPath(section, name); }

std::string Key::TypeText() const {
  const std::string text = std::visit(
      Overloaded{
          [](bool*) -> std::string { return "true or false"; },
          [](int64_t*) -> std::string { return "whole number"; },
          [](double*) -> std::string { return "number"; },
          [](std::string*) -> std::string { return "text"; },
          [](const Bytes&) -> std::string { return "bytes, such as 1073741824 or 1GiB"; },
          [](std::vector<int64_t>*) -> std::string { return "list of whole numbers"; },
          [this](const Choice&) { return absl::StrCat("one of ", absl::StrJoin(names, ", ")); },
          [](const Records& r) { return absl::StrCat("list of {", RecordKeys(r), "}"); }},
      field);
  return word.empty() ? text : absl::StrCat(text, " or ", word);
}

std::string Key::RangeText() const {
  std::vector<std::string> parts;
  if (std::isfinite(min)) {
    parts.push_back(absl::StrCat(min_is_open ? "above " : "at least ", BoundText(min)));
  }
  if (std::isfinite(max)) {
    parts.push_back(absl::StrCat(max_is_open ? "below " : "at most ", BoundText(max)));
  }
  return absl::StrJoin(parts, " and ");
}

std::string Key::ValueText() const {
  return std::visit(
      Overloaded{
          [](bool* v) -> std::string { return *v ? "true" : "false"; },
          [this](int64_t* v) { return *v == 0 && !word.empty() ? word : absl::StrCat(*v); },
          [](double* v) { return FloatText(*v); }, [](std::string* v) { return QuoteYaml(*v); },
          [](const Bytes& v) { return memory::BytesToText(*v.value); },
          [](std::vector<int64_t>* v) { return absl::StrCat("[", absl::StrJoin(*v, ", "), "]"); },
          [this](const Choice& v) {
            const size_t i = v.get();
            MF_CHECK(i < names.size()) << " " << path() << " holds a value without a name";
            return QuoteYaml(names[i]);
          },
          [](const Records& v) { return RecordsText(v); }},
      field);
}

nlohmann::json Key::ValueJson() const {
  return std::visit(
      Overloaded{[](bool* v) { return nlohmann::json(*v); },
                 [this](int64_t* v) {
                   return *v == 0 && !word.empty() ? nlohmann::json(word) : nlohmann::json(*v);
                 },
                 [](double* v) { return nlohmann::json(*v); },
                 [](std::string* v) { return nlohmann::json(*v); },
                 [](const Bytes& v) { return nlohmann::json(*v.value); },
                 [](std::vector<int64_t>* v) { return nlohmann::json(*v); },
                 [this](const Choice& v) { return nlohmann::json(names.at(v.get())); },
                 [](const Records&) { return nlohmann::json::array(); }},
      field);
}

std::string JoinPath(absl::string_view section, absl::string_view name) {
  return section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
}

std::string FloatText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

void Schema::Section(std::string path, std::string sentence) {
  MF_CHECK(!HasSection(path)) << " section '" << path << "' is declared twice";
  sections_.push_back({std::move(path), std::move(sentence)});
}

Key& Schema::Add(std::string name, decltype(Key::field) field, std::string sentence) {
  const std::string section = sections_.empty() ? "" : sections_.back().path;
  MF_CHECK(Find(section, name) == nullptr && !HasSection(JoinPath(section, name)))
      << " '" << JoinPath(section, name) << "' is declared twice";
  Key key;
  key.section = section;
  key.name = std::move(name);
  key.sentence = std::move(sentence);
  key.field = std::move(field);
  return keys_.emplace_back(std::move(key));
}

Key& Schema::Bool(std::string name, bool* field, std::string sentence) {
  return Add(std::move(name), field, std::move(sentence));
}

Key& Schema::Int(std::string name, int64_t* field, std::string sentence) {
  return Add(std::move(name), field, std::move(sentence));
}

Key& Schema::Float(std::string name, double* field, std::string sentence) {
  return Add(std::move(name), field, std::move(sentence));
}

Key& Schema::String(std::string name, std::string* field, std::string sentence) {
  return Add(std::move(name), field, std::move(sentence));
}

Key& Schema::Bytes(std::string name, int64_t* field, std::string sentence) {
  return Add(std::move(name), Key::Bytes{field}, std::move(sentence)).AtLeast(0);
}

Key& Schema::IntList(std::string name, std::vector<int64_t>* field, std::string sentence) {
  return Add(std::move(name), field, std::move(sentence));
}

const Key* Schema::Find(absl::string_view section, absl::string_view name) const {
  for (const Key& key : keys_) {
    if (key.section == section && key.name == name) return &key;
  }
  return nullptr;
}

bool Schema::HasSection(absl::string_view path) const {
  return std::any_of(sections_.begin(), sections_.end(),
                     [path](const SectionInfo& section) { return section.path == path; });
}

bool Schema::IsGiven(absl::string_view path) const {
  return std::find(given_.begin(), given_.end(), path) != given_.end();
}

}  // namespace meshfold::train
