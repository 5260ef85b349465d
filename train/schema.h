// Declarations of YAML keys: each key once, with type, unit, default, range and one sentence. From
// them come parsing, the key table, the JSON Schema, the resolved file and all error texts.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/yaml.h"

namespace meshfold::train {

// Where a value was written, for messages: "my.yaml:12", "--set".
struct Place {
  std::string source;
  int line = 0;  // from 1; 0: none
  std::string ToString() const;
};

// One key, bound to the variable that it fills.
struct Field {
  std::string section, key;
  std::string type;             // "integer", "number", "true or false", "string", "one of ...", ...
  std::string unit;             // "steps", "bytes", ...; may be empty
  std::string range;            // "at least 1"; may be empty
  std::string doc;              // one sentence
  nlohmann::json schema;        // JSON Schema of the value
  // Reads a value; the message says only what is wrong with it ("'x' is not a number").
  std::function<absl::Status(const YAML::Node&)> parse;
  // The present value as YAML, and as JSON for the schema's default.
  std::function<std::string()> to_yaml;
  std::function<nlohmann::json()> to_json;

  std::string path() const { return section + "." + key; }
};

struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};

struct FloatRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool exclude_min = false;
};

// A set of keys bound to one config object, in the order declared.
class Schema {
 public:
  // Starts a section; the keys declared next belong to it.
  void Section(const std::string& name, const std::string& doc);

  void Bool(const std::string& key, bool* value, const std::string& doc);
  void Int(const std::string& key, int64_t* value, IntRange range, const std::string& unit,
           const std::string& doc);
  // An integer, or the word "auto", which is stored as 0.
  void IntOrAuto(const std::string& key, int64_t* value, IntRange range, const std::string& doc);
  // Bytes: an integer, or one with a unit: "512MiB", "4GiB".
  void Bytes(const std::string& key, int64_t* value, const std::string& doc);
  void Float(const std::string& key, double* value, FloatRange range, const std::string& unit,
             const std::string& doc);
  void String(const std::string& key, std::string* value, const std::string& doc);
  void IntList(const std::string& key, std::vector<int64_t>* value, const std::string& doc);
  // A word of a fixed set.
  template <typename T>
  void Enum(const std::string& key, T* value, std::vector<std::pair<std::string, T>> choices,
            const std::string& doc);
  // Anything else.
  void Custom(Field field);

  // Fills the bound variables. `place.source` leads the messages. InvalidArgument for an unknown
  // section or key (naming the nearest), a repeated key, a wrong type, a value out of range.
  absl::Status Parse(const YAML::Node& root, const std::string& source) const;
  // "section.key=value", value as YAML.
  absl::Status ParseOverride(const std::string& assignment) const;

  std::string ToYaml() const;
  // Markdown: a table a section.
  std::string ToDoc() const;
  nlohmann::json ToJsonSchema() const;

 private:
  struct SectionInfo {
    std::string name, doc;
  };
  const Field* Find(absl::string_view section, absl::string_view key) const;
  absl::Status UnknownKey(const Place& place, const std::string& path) const;
  absl::Status ParseField(const Field& field, const YAML::Node& value, const Place& place) const;
  void Add(const std::string& key, Field field);

  std::vector<SectionInfo> sections_;
  std::vector<Field> fields_;
};

// `text` as a YAML document: InvalidArgument with source and line for a syntax error.
absl::Status LoadYaml(const std::string& text, const std::string& source, YAML::Node* root);

// The shortest decimal that reads back as `value`: "2e-05", "0.1".
std::string FormatFloat(double value);

// The names among `known` nearest to `name` by edit distance; empty when nothing is near.
std::string NearestName(const std::string& name, const std::vector<std::string>& known);

template <typename T>
void Schema::Enum(const std::string& key, T* value,
                  std::vector<std::pair<std::string, T>> choices, const std::string& doc) {
  Field field;
  std::vector<std::string> names;
  for (const auto& choice : choices) names.push_back(choice.first);
  field.type = "one of ";
  for (size_t i = 0; i < names.size(); ++i) field.type += (i == 0 ? "" : ", ") + names[i];
  field.doc = doc;
  field.schema = {{"enum", names}};
  std::string type = field.type;
  field.parse = [=](const YAML::Node& node) {
    if (node.IsScalar()) {
      for (const auto& choice : choices) {
        if (node.Scalar() != choice.first) continue;
        *value = choice.second;
        return absl::OkStatus();
      }
    }
    std::string shown = node.IsScalar() ? "'" + node.Scalar() + "'" : "the value";
    return absl::InvalidArgumentError(shown + " is not " + type);
  };
  field.to_yaml = [=] {
    for (const auto& choice : choices) {
      if (*value == choice.second) return choice.first;
    }
    return std::string("?");
  };
  field.to_json = [to_yaml = field.to_yaml] { return nlohmann::json(to_yaml()); };
  Add(key, std::move(field));
}

}  // namespace meshfold::train
