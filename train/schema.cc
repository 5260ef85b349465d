#include "train/schema.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace meshfold::train {
namespace {

absl::Status Bad(const std::string& message) { return absl::InvalidArgumentError(message); }

// How a value is shown in messages.
std::string Show(const YAML::Node& node) {
  if (node.IsScalar()) return absl::StrCat("'", node.Scalar(), "'");
  if (node.IsSequence()) return "a list";
  if (node.IsMap()) return "a mapping";
  return "nothing";
}

// Text of an unquoted scalar: a quoted number is a string.
bool PlainScalar(const YAML::Node& node) { return node.IsScalar() && node.Tag() != "!"; }

absl::Status ReadInt(const YAML::Node& node, int64_t* out) {
  int64_t value;
  if (!PlainScalar(node) || !absl::SimpleAtoi(node.Scalar(), &value)) {
    return Bad(absl::StrCat(Show(node), " is not an integer"));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status CheckRange(int64_t value, const IntRange& range) {
  if (value < range.min) return Bad(absl::StrCat(value, " is below ", range.min));
  if (value > range.max) return Bad(absl::StrCat(value, " is above ", range.max));
  return absl::OkStatus();
}

absl::Status ReadFloat(const YAML::Node& node, double* out) {
  double value;
  if (!PlainScalar(node) || !absl::SimpleAtod(node.Scalar(), &value) || value != value) {
    return Bad(absl::StrCat(Show(node), " is not a number"));
  }
  *out = value;
  return absl::OkStatus();
}

absl::Status CheckRange(double value, const FloatRange& range) {
  if (value < range.min || (range.exclude_min && value == range.min)) {
    return Bad(absl::StrCat(FormatFloat(value), " is not above ",
                            range.exclude_min ? "" : "or equal to ", FormatFloat(range.min)));
  }
  if (value > range.max) {
    return Bad(absl::StrCat(FormatFloat(value), " is above ", FormatFloat(range.max)));
  }
  return absl::OkStatus();
}

std::string Describe(const IntRange& range) {
  IntRange open;
  bool has_min = range.min != open.min, has_max = range.max != open.max;
  if (has_min && has_max) return absl::StrCat(range.min, " to ", range.max);
  if (has_min) return absl::StrCat("at least ", range.min);
  return has_max ? absl::StrCat("at most ", range.max) : "";
}

std::string Describe(const FloatRange& range) {
  FloatRange open;
  bool has_min = range.min != open.min, has_max = range.max != open.max;
  std::string low = absl::StrCat(range.exclude_min ? "above " : "at least ", FormatFloat(range.min));
  if (has_min && has_max) return absl::StrCat(low, ", at most ", FormatFloat(range.max));
  if (has_min) return low;
  return has_max ? absl::StrCat("at most ", FormatFloat(range.max)) : "";
}

absl::Status ReadBytes(const YAML::Node& node, int64_t* out) {
  static constexpr std::pair<const char*, int64_t> kUnits[] = {
      {"KiB", int64_t{1} << 10}, {"MiB", int64_t{1} << 20}, {"GiB", int64_t{1} << 30}, {"", 1}};
  if (node.IsScalar()) {
    const std::string& text = node.Scalar();
    size_t digits = text.find_first_not_of("0123456789");
    absl::string_view number = absl::string_view(text).substr(0, digits);
    absl::string_view unit =
        digits == std::string::npos ? "" : absl::string_view(text).substr(digits);
    int64_t value;
    for (const auto& [name, factor] : kUnits) {
      if (unit != name || !absl::SimpleAtoi(number, &value)) continue;
      if (value > std::numeric_limits<int64_t>::max() / factor) break;
      *out = value * factor;
      return absl::OkStatus();
    }
  }
  return Bad(absl::StrCat(Show(node), " is not a number of bytes, such as 1073741824 or 1GiB"));
}

int64_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int64_t diagonal = row[0];
    row[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      int64_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

std::string QuoteYaml(const std::string& text) {
  YAML::Emitter emitter;
  emitter << YAML::DoubleQuoted << text;
  return emitter.c_str();
}

}  // namespace

std::string Place::ToString() const {
  return line > 0 ? absl::StrCat(source, ":", line) : source;
}

std::string FormatFloat(double value) {
  char text[40];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  return text;
}

std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  std::string best;
  int64_t best_distance = static_cast<int64_t>(name.size()) / 2 + 1;
  for (const std::string& candidate : known) {
    int64_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

absl::Status LoadYaml(const std::string& text, const std::string& source, YAML::Node* root) {
  try {
    *root = YAML::Load(text);
  } catch (const YAML::Exception& error) {
    int line = error.mark.is_null() ? 0 : error.mark.line + 1;
    return Bad(absl::StrCat(Place{source, line}.ToString(), ": not valid YAML: ", error.msg));
  }
  return absl::OkStatus();
}

void Schema::Section(const std::string& name, const std::string& doc) {
  sections_.push_back({name, doc});
}

void Schema::Add(const std::string& key, Field field) {
  field.section = sections_.back().name;
  field.key = key;
  MF_CHECK(Find(field.section, key) == nullptr) << " key '" << field.path() << "' twice";
  fields_.push_back(std::move(field));
}

void Schema::Custom(Field field) {
  std::string key = field.key;
  Add(key, std::move(field));
}

void Schema::Bool(const std::string& key, bool* value, const std::string& doc) {
  Field field;
  field.type = "true or false";
  field.doc = doc;
  field.schema = {{"type", "boolean"}};
  field.parse = [value](const YAML::Node& node) {
    bool is_true = PlainScalar(node) && node.Scalar() == "true";
    if (!is_true && !(PlainScalar(node) && node.Scalar() == "false")) {
      return Bad(absl::StrCat(Show(node), " is not true or false"));
    }
    *value = is_true;
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return std::string(*value ? "true" : "false"); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::Int(const std::string& key, int64_t* value, IntRange range, const std::string& unit,
                 const std::string& doc) {
  Field field;
  field.type = "integer";
  field.unit = unit;
  field.range = Describe(range);
  field.doc = doc;
  field.schema = {{"type", "integer"}};
  if (range.min != IntRange().min) field.schema["minimum"] = range.min;
  if (range.max != IntRange().max) field.schema["maximum"] = range.max;
  field.parse = [value, range](const YAML::Node& node) {
    int64_t read = 0;
    MF_RETURN_IF_ERROR(ReadInt(node, &read));
    MF_RETURN_IF_ERROR(CheckRange(read, range));
    *value = read;
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return absl::StrCat(*value); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::IntOrAuto(const std::string& key, int64_t* value, IntRange range,
                       const std::string& doc) {
  Field field;
  field.type = "integer or auto";
  field.range = Describe(range);
  field.doc = doc;
  field.schema = {{"anyOf", {{{"type", "integer"}, {"minimum", range.min}}, {{"const", "auto"}}}}};
  field.parse = [value, range](const YAML::Node& node) {
    int64_t read = 0;
    if (!(node.IsScalar() && node.Scalar() == "auto")) {
      if (!ReadInt(node, &read).ok()) {
        return Bad(absl::StrCat(Show(node), " is neither an integer nor auto"));
      }
      MF_RETURN_IF_ERROR(CheckRange(read, range));
    }
    *value = read;
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return *value == 0 ? std::string("auto") : absl::StrCat(*value); };
  field.to_json = [value] { return *value == 0 ? nlohmann::json("auto") : nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::Bytes(const std::string& key, int64_t* value, const std::string& doc) {
  Field field;
  field.type = "bytes";
  field.unit = "bytes, or with KiB, MiB, GiB";
  field.range = "at least 0";
  field.doc = doc;
  field.schema = {{"type", {"integer", "string"}}, {"minimum", 0}};
  field.parse = [value](const YAML::Node& node) { return ReadBytes(node, value); };
  field.to_yaml = [value] { return absl::StrCat(*value); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::Float(const std::string& key, double* value, FloatRange range,
                   const std::string& unit, const std::string& doc) {
  Field field;
  field.type = "number";
  field.unit = unit;
  field.range = Describe(range);
  field.doc = doc;
  field.schema = {{"type", "number"}};
  if (range.min != FloatRange().min) {
    field.schema[range.exclude_min ? "exclusiveMinimum" : "minimum"] = range.min;
  }
  if (range.max != FloatRange().max) field.schema["maximum"] = range.max;
  field.parse = [value, range](const YAML::Node& node) {
    double read = 0.0;
    MF_RETURN_IF_ERROR(ReadFloat(node, &read));
    MF_RETURN_IF_ERROR(CheckRange(read, range));
    *value = read;
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return FormatFloat(*value); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::String(const std::string& key, std::string* value, const std::string& doc) {
  Field field;
  field.type = "string";
  field.doc = doc;
  field.schema = {{"type", "string"}};
  field.parse = [value](const YAML::Node& node) {
    if (!node.IsScalar()) return Bad(absl::StrCat(Show(node), " is not a string"));
    *value = node.Scalar();
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return QuoteYaml(*value); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

void Schema::IntList(const std::string& key, std::vector<int64_t>* value, const std::string& doc) {
  Field field;
  field.type = "list of integers";
  field.doc = doc;
  field.schema = {{"type", "array"}, {"items", {{"type", "integer"}}}};
  field.parse = [value](const YAML::Node& node) {
    if (!node.IsSequence()) return Bad(absl::StrCat(Show(node), " is not a list of integers"));
    std::vector<int64_t> read(node.size());
    for (size_t i = 0; i < node.size(); ++i) MF_RETURN_IF_ERROR(ReadInt(node[i], &read[i]));
    *value = read;
    return absl::OkStatus();
  };
  field.to_yaml = [value] { return absl::StrCat("[", absl::StrJoin(*value, ", "), "]"); };
  field.to_json = [value] { return nlohmann::json(*value); };
  Add(key, std::move(field));
}

const Field* Schema::Find(absl::string_view section, absl::string_view key) const {
  for (const Field& field : fields_) {
    if (field.section == section && field.key == key) return &field;
  }
  return nullptr;
}

absl::Status Schema::UnknownKey(const Place& place, const std::string& path) const {
  std::string key = path.substr(path.find('.') + 1);
  std::vector<std::string> paths;
  for (const Field& field : fields_) {
    if (field.key == key) {
      return Bad(absl::StrCat(place.ToString(), ": unknown key '", path, "'; '", key,
                              "' belongs to section '", field.section, "'"));
    }
    paths.push_back(field.path());
  }
  std::string nearest = NearestName(path, paths);
  std::string hint = nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
  return Bad(absl::StrCat(place.ToString(), ": unknown key '", path, "'", hint));
}

absl::Status Schema::ParseField(const Field& field, const YAML::Node& value,
                                const Place& place) const {
  absl::Status status = field.parse(value);
  if (status.ok()) return status;
  return Bad(absl::StrCat(place.ToString(), ": ", field.path(), ": ", status.message()));
}

absl::Status Schema::Parse(const YAML::Node& root, const std::string& source) const {
  if (root.IsNull()) return absl::OkStatus();  // an empty file: all defaults
  if (!root.IsMap()) return Bad(absl::StrCat(source, ": not a mapping of sections"));
  std::vector<std::string> known;
  for (const SectionInfo& section : sections_) known.push_back(section.name);
  std::set<std::string> seen;
  for (const auto& entry : root) {
    Place place{source, entry.first.Mark().line + 1};
    if (!entry.first.IsScalar()) return Bad(absl::StrCat(place.ToString(), ": a key is no word"));
    std::string section = entry.first.Scalar();
    if (std::find(known.begin(), known.end(), section) == known.end()) {
      std::string nearest = NearestName(section, known);
      for (const Field& field : fields_) {
        if (field.key == section) nearest = field.path();
      }
      std::string hint = nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
      return Bad(absl::StrCat(place.ToString(), ": unknown section '", section, "'", hint));
    }
    if (!seen.insert(section).second) {
      return Bad(absl::StrCat(place.ToString(), ": section '", section, "' stands twice"));
    }
    if (entry.second.IsNull()) continue;
    if (!entry.second.IsMap()) {
      return Bad(absl::StrCat(place.ToString(), ": section '", section, "' is ",
                              Show(entry.second), ", not a mapping of keys"));
    }
    for (const auto& pair : entry.second) {
      Place at{source, pair.first.Mark().line + 1};
      if (!pair.first.IsScalar()) return Bad(absl::StrCat(at.ToString(), ": a key is no word"));
      std::string path = absl::StrCat(section, ".", pair.first.Scalar());
      const Field* field = Find(section, pair.first.Scalar());
      if (field == nullptr) return UnknownKey(at, path);
      if (!seen.insert(path).second) {
        return Bad(absl::StrCat(at.ToString(), ": key '", path, "' stands twice"));
      }
      MF_RETURN_IF_ERROR(ParseField(*field, pair.second, at));
    }
  }
  return absl::OkStatus();
}

absl::Status Schema::ParseOverride(const std::string& assignment) const {
  Place place{"--set", 0};
  size_t equals = assignment.find('=');
  size_t dot = assignment.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
    return Bad(absl::StrCat("--set '", assignment, "' is not section.key=value"));
  }
  std::string section = assignment.substr(0, dot);
  std::string key = assignment.substr(dot + 1, equals - dot - 1);
  const Field* field = Find(section, key);
  if (field == nullptr) return UnknownKey(place, absl::StrCat(section, ".", key));
  YAML::Node value;
  // A string is taken as it stands: paths may hold what YAML would read otherwise.
  if (field->type == "string") {
    value = YAML::Node(assignment.substr(equals + 1));
  } else {
    MF_RETURN_IF_ERROR(LoadYaml(assignment.substr(equals + 1), "--set", &value));
  }
  return ParseField(*field, value, place);
}

std::string Schema::ToYaml() const {
  std::string out;
  for (const SectionInfo& section : sections_) {
    absl::StrAppend(&out, section.name, ":\n");
    for (const Field& field : fields_) {
      if (field.section != section.name) continue;
      absl::StrAppend(&out, "  ", field.key, ": ", field.to_yaml(), "\n");
    }
  }
  return out;
}

std::string Schema::ToDoc() const {
  std::string out = "# Configuration keys\n";
  for (const SectionInfo& section : sections_) {
    absl::StrAppend(&out, "\n## ", section.name, "\n\n", section.doc,
                    "\n\n| key | type | default | range | meaning |\n|---|---|---|---|---|\n");
    for (const Field& field : fields_) {
      if (field.section != section.name) continue;
      std::string type = field.unit.empty() ? field.type
                                            : absl::StrCat(field.type, " (", field.unit, ")");
      absl::StrAppend(&out, "| `", field.path(), "` | ", type, " | `", field.to_yaml(), "` | ",
                      field.range, " | ", field.doc, " |\n");
    }
  }
  return out;
}

nlohmann::json Schema::ToJsonSchema() const {
  nlohmann::json sections = nlohmann::json::object();
  for (const SectionInfo& section : sections_) {
    nlohmann::json keys = nlohmann::json::object();
    for (const Field& field : fields_) {
      if (field.section != section.name) continue;
      nlohmann::json key = field.schema;
      key["description"] = field.doc;
      key["default"] = field.to_json();
      keys[field.key] = key;
    }
    sections[section.name] = {{"type", "object"},
                              {"description", section.doc},
                              {"additionalProperties", false},
                              {"properties", keys}};
  }
  return {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
          {"title", "Meshfold configuration"},
          {"type", "object"},
          {"additionalProperties", false},
          {"properties", sections}};
}

}  // namespace meshfold::train
