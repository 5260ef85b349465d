// Schema: the YAML keys of a config, each declared once with place, type, unit, range and one
// sentence, and bound to the variable that it fills. That declaration yields parsing, the key
// table, the JSON Schema, the resolved file and every error text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace meshfold::train {

class Schema;

// One declared key. The functions below add to a declaration and return the key, to be chained:
//   schema.Float("lr", &lr, "Peak learning rate.").AtLeast(0).AtMost(10);
struct Key {
  // A word of a fixed set, as an index into `names`.
  struct Choice {
    std::function<size_t()> get;
    std::function<void(size_t)> set;
  };
  // A list of small records; `declare(i, schema)` binds the keys of entry i, or of an example past
  // the last one.
  struct Records {
    std::function<size_t()> size;
    std::function<void(size_t)> resize;
    std::function<void(size_t, Schema&)> declare;
  };
  struct Bytes {
    int64_t* value;
  };

  std::string section;   // "parallel.zero"; empty in a record
  std::string name;      // "stage"
  std::string sentence;  // what it means
  std::variant<bool*, int64_t*, double*, std::string*, Bytes, std::vector<int64_t>*, Choice,
               Records>
      field;
  std::string unit;                   // "steps"; empty: none
  std::vector<std::string> names;     // of a Choice: all; of a string: known ones, others pass
  std::vector<std::string> synonyms;  // what other frameworks call it: for suggestions only
  std::string word;                   // "auto": accepted for an integer and stored as 0
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool min_is_open = false, max_is_open = false;  // the bound itself is outside

  Key& AtLeast(double value);
  Key& AtMost(double value);
  Key& Above(double value);
  Key& Below(double value);
  Key& Unit(std::string text);
  Key& Names(std::vector<std::string> known);
  Key& Synonyms(std::vector<std::string> others);
  Key& Word(std::string text);

  std::string path() const;       // "parallel.zero.stage"
  std::string TypeText() const;   // "whole number or auto", "one of cosine, linear"
  std::string RangeText() const;  // "at least 0", "above 0 and at most 1"; empty: no bounds
  std::string ValueText() const;  // the variable's value as one line of YAML
  nlohmann::json ValueJson() const;
};

// Keys bound to one object, in order of declaration; bound variables must outlive the schema.
class Schema {
 public:
  Schema() = default;
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  // Starts a section, "parallel" or, inside the one before it, "parallel.zero". The keys declared
  // next belong to it. Before the first one they stand at the root.
  void Section(std::string path, std::string sentence);

  Key& Bool(std::string name, bool* field, std::string sentence);
  Key& Int(std::string name, int64_t* field, std::string sentence);
  Key& Float(std::string name, double* field, std::string sentence);
  Key& String(std::string name, std::string* field, std::string sentence);
  // A size as memory::ParseBytes reads it.
  Key& Bytes(std::string name, int64_t* field, std::string sentence);
  Key& IntList(std::string name, std::vector<int64_t>* field, std::string sentence);
  template <typename T>
  Key& Choice(std::string name, T* field, std::vector<std::pair<std::string, T>> choices,
              std::string sentence);
  template <typename T>
  Key& Records(std::string name, std::vector<T>* field, void (*declare)(T&, Schema&),
               std::string sentence);

  // Fills the bound variables from a YAML text; keys that are absent keep their values. `place`
  // leads the messages, with the line: "my.yaml:12: ...". InvalidArgument for text that is no YAML
  // or larger than any config, an unknown key (naming the nearest one), a repeated key, a value of
  // another type or out of range. Variables are partly filled after an error.
  absl::Status Read(absl::string_view yaml, absl::string_view place);
  // "optimizer.lr=2e-5". A string is taken as it stands; lists are YAML. Messages start with
  // "--set".
  absl::Status Set(absl::string_view assignment);
  // Whether Read or Set has filled the key.
  bool IsGiven(absl::string_view path) const;

  std::string ToYaml() const;           // every key with its value
  std::string ToMarkdown() const;       // a table a section
  std::string ToJsonSchema() const;     // draft 2020-12, of the whole file
  nlohmann::json ObjectSchema() const;  // the same without the header: for a record

  struct SectionInfo {
    std::string path, sentence;
  };
  const std::vector<SectionInfo>& sections() const { return sections_; }
  const std::deque<Key>& keys() const { return keys_; }
  const Key* Find(absl::string_view section, absl::string_view name) const;
  bool HasSection(absl::string_view path) const;
  void MarkGiven(std::string path) { given_.push_back(std::move(path)); }

 private:
  Key& Add(std::string name, decltype(Key::field) field, std::string sentence);

  std::vector<SectionInfo> sections_;
  std::deque<Key> keys_;
  std::vector<std::string> given_;
};

// "a.b" from "a" and "b", "b" from "" and "b".
std::string JoinPath(absl::string_view section, absl::string_view name);

// The shortest decimal that reads back as `value`: "2e-05", "0.1", "1.0".
std::string FloatText(double value);

template <typename T>
Key& Schema::Choice(std::string name, T* field, std::vector<std::pair<std::string, T>> choices,
                    std::string sentence) {
  std::vector<std::string> names;
  std::vector<T> values;
  for (auto& [word, value] : choices) {
    names.push_back(word);
    values.push_back(value);
  }
  auto get = [field, values] {
    for (size_t i = 0; i < values.size(); ++i) {
      if (*field == values[i]) return i;
    }
    return values.size();
  };
  auto set = [field, values](size_t i) { *field = values[i]; };
  return Add(std::move(name), Key::Choice{get, set}, std::move(sentence)).Names(std::move(names));
}

template <typename T>
Key& Schema::Records(std::string name, std::vector<T>* field, void (*declare)(T&, Schema&),
                     std::string sentence) {
  return Add(std::move(name),
             Key::Records{[field] { return field->size(); },
                          [field](size_t size) { field->assign(size, T()); },
                          [field, declare, example = std::make_shared<T>()](size_t i, Schema& s) {
                            declare(i < field->size() ? (*field)[i] : *example, s);
                          }},
             std::move(sentence));
}

}  // namespace meshfold::train
