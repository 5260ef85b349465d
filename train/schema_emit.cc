// What a schema writes: the resolved YAML, the key table, the JSON Schema.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "train/schema.h"

namespace meshfold::train {
namespace {

size_t Depth(const std::string& path) {
  return static_cast<size_t>(std::count(path.begin(), path.end(), '.'));
}

std::string LastName(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? path : path.substr(dot + 1);
}

// Text of a table cell.
std::string Cell(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

void AddBounds(const Key& key, nlohmann::json& schema) {
  const auto number = [](double bound) {
    return bound == std::floor(bound) && std::abs(bound) < 1e15
               ? nlohmann::json(static_cast<int64_t>(bound))
               : nlohmann::json(bound);
  };
  if (std::isfinite(key.min)) {
    schema[key.min_is_open ? "exclusiveMinimum" : "minimum"] = number(key.min);
  }
  if (std::isfinite(key.max)) {
    schema[key.max_is_open ? "exclusiveMaximum" : "maximum"] = number(key.max);
  }
}

nlohmann::json TypeSchema(const Key& key) {
  nlohmann::json schema;
  if (std::holds_alternative<bool*>(key.field)) {
    schema["type"] = "boolean";
  } else if (std::holds_alternative<int64_t*>(key.field)) {
    schema["type"] = "integer";
    AddBounds(key, schema);
    if (!key.word.empty()) schema = {{"anyOf", {schema, {{"const", key.word}}}}};
  } else if (std::holds_alternative<double*>(key.field)) {
    schema["type"] = "number";
    AddBounds(key, schema);
  } else if (std::holds_alternative<std::string*>(key.field)) {
    schema["type"] = "string";
    if (!key.names.empty()) schema["examples"] = key.names;
  } else if (std::holds_alternative<Key::Bytes>(key.field)) {
    nlohmann::json size = {{"type", "string"},
                           {"pattern", "^[0-9]+(\\.[0-9]*)? ?(B|[kMGT]B|[KMGT]iB)$"}};
    schema["anyOf"] = {{{"type", "integer"}, {"minimum", 0}}, size};
  } else if (std::holds_alternative<Key::Choice>(key.field)) {
    schema["enum"] = key.names;
  } else if (std::holds_alternative<std::vector<int64_t>*>(key.field)) {
    nlohmann::json item = {{"type", "integer"}};
    AddBounds(key, item);
    schema = {{"type", "array"}, {"items", item}};
  } else {
    Schema entry;
    const auto& records = std::get<Key::Records>(key.field);
    records.declare(records.size(), entry);
    schema = {{"type", "array"}, {"items", entry.ObjectSchema()}};
  }
  return schema;
}

nlohmann::json KeySchema(const Key& key) {
  nlohmann::json schema = TypeSchema(key);
  schema["description"] =
      key.unit.empty() ? key.sentence : absl::StrCat(key.sentence, " Unit: ", key.unit, ".");
  schema["default"] = key.ValueJson();
  return schema;
}

// The schema object of a section inside its parents.
nlohmann::json& SectionSchema(nlohmann::json& root, const std::string& path) {
  const size_t dot = path.rfind('.');
  nlohmann::json& parent =
      dot == std::string::npos ? root : SectionSchema(root, path.substr(0, dot));
  return parent["properties"][LastName(path)];
}

}  // namespace

std::string Schema::ToYaml() const {
  std::string out;
  const auto append_keys = [this, &out](const std::string& section, size_t indent) {
    for (const Key& key : keys_) {
      if (key.section != section) continue;
      absl::StrAppend(&out, std::string(indent, ' '), key.name, ": ", key.ValueText(), "\n");
    }
  };
  append_keys("", 0);
  for (const SectionInfo& section : sections_) {
    const size_t indent = 2 * Depth(section.path);
    absl::StrAppend(&out, std::string(indent, ' '), LastName(section.path), ":\n");
    append_keys(section.path, indent + 2);
  }
  return out;
}

std::string Schema::ToMarkdown() const {
  std::string out;
  for (const SectionInfo& section : sections_) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", "## `", section.path, "`\n\n", section.sentence,
                    "\n\n| key | type | unit | default | range | meaning |\n",
                    "|---|---|---|---|---|---|\n");
    for (const Key& key : keys_) {
      if (key.section != section.path) continue;
      std::string type = key.TypeText();
      if (std::holds_alternative<std::string*>(key.field) && !key.names.empty()) {
        type = absl::StrCat("name, such as ", absl::StrJoin(key.names, ", "));
      }
      absl::StrAppend(&out, "| `", key.path(), "` | ", Cell(type), " | ", Cell(key.unit), " | `",
                      Cell(key.ValueText()), "` | ", Cell(key.RangeText()), " | ",
                      Cell(key.sentence), " |\n");
    }
  }
  return out;
}

nlohmann::json Schema::ObjectSchema() const {
  nlohmann::json root = {{"type", "object"},
                         {"additionalProperties", false},
                         {"properties", nlohmann::json::object()}};
  for (const SectionInfo& section : sections_) {
    SectionSchema(root, section.path) = {{"type", {"object", "null"}},
                                         {"description", section.sentence},
                                         {"additionalProperties", false},
                                         {"properties", nlohmann::json::object()}};
  }
  for (const Key& key : keys_) {
    nlohmann::json& parent = key.section.empty() ? root : SectionSchema(root, key.section);
    parent["properties"][key.name] = KeySchema(key);
  }
  return root;
}

std::string Schema::ToJsonSchema() const {
  nlohmann::json root = ObjectSchema();
  root["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  root["title"] = "Meshfold configuration";
  return root.dump(2) + "\n";
}

}  // namespace meshfold::train
