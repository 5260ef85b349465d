// Reading YAML into the variables of a schema.
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "memory/pool_limits.h"
#include "train/schema.h"
#include "train/schema_suggest.h"
#include "train/yaml_document.h"
#include "yaml-cpp/yaml.h"

namespace meshfold::train {
namespace {

constexpr size_t kMaxShown = 60;  // characters of a value in a message

template <typename... Args>
absl::Status Refuse(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

std::string Shown(absl::string_view text) {
  const std::string escaped = absl::Utf8SafeCHexEscape(text.substr(0, kMaxShown));
  return absl::StrCat("'", escaped, text.size() > kMaxShown ? "..." : "", "'");
}

std::string Shown(const YAML::Node& node) {
  if (node.IsScalar()) return Shown(node.Scalar());
  if (node.IsSequence()) return "a list";
  return node.IsMap() ? "a mapping" : "nothing";
}

// A value in quotes is text, whatever it spells.
bool IsQuoted(const YAML::Node& node) { return node.Tag() == "!"; }

bool IsWholeNumber(absl::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Decimal numbers alone: no "inf", "nan", hexadecimal or surrounding space.
bool IsDecimal(absl::string_view text) {
  return text.find_first_of("0123456789") != absl::string_view::npos &&
         text.find_first_not_of("+-.0123456789eE") == absl::string_view::npos;
}

bool InRange(const Key& key, double value) {
  return (key.min_is_open ? value > key.min : value >= key.min) &&
         (key.max_is_open ? value < key.max : value <= key.max);
}

// Reads single values of one key. `where` is the place and the key: "my.yaml:3: optimizer.lr".
class ValueReader {
 public:
  ValueReader(const Key& key, std::string where) : key_(key), where_(std::move(where)) {}

  absl::Status Read(absl::string_view text, bool quoted) const {
    if (auto* field = std::get_if<std::string*>(&key_.field)) {
      **field = std::string(text);
      return absl::OkStatus();
    }
    if (auto* field = std::get_if<Key::Choice>(&key_.field)) return ReadChoice(*field, text);
    if (auto* field = std::get_if<Key::Bytes>(&key_.field)) return ReadBytes(*field, text);
    if (quoted) return WrongType(absl::StrCat("the quoted text ", Shown(text)));
    if (auto* field = std::get_if<bool*>(&key_.field)) return ReadBool(*field, text);
    if (auto* field = std::get_if<double*>(&key_.field)) return ReadFloat(*field, text);
    if (auto* field = std::get_if<int64_t*>(&key_.field)) return ReadInt(*field, text);
    return WrongType(Shown(text));
  }

  absl::Status ReadInt(int64_t* out, absl::string_view text) const {
    int64_t value = 0;
    if (!key_.word.empty() && text == key_.word) {
      *out = 0;
      return absl::OkStatus();
    }
    if (!IsWholeNumber(text)) return WrongType(Shown(text));
    if (!absl::SimpleAtoi(text, &value)) {
      return Refuse(where_, " is ", Shown(text), "; whole numbers have at most 63 bits");
    }
    if (!InRange(key_, static_cast<double>(value))) return OutOfRange(text);
    *out = value;
    return absl::OkStatus();
  }

  absl::Status WrongType(absl::string_view shown) const {
    const std::string unit = key_.unit.empty() ? "" : absl::StrCat(" (", key_.unit, ")");
    const bool is_float = std::holds_alternative<double*>(key_.field);
    return Refuse(where_, " is ", shown, "; expected ", key_.TypeText(),
                  is_float ? ", such as 2e-5" : "", unit);
  }

 private:
  absl::Status ReadBool(bool* out, absl::string_view text) const {
    if (text != "true" && text != "false") return WrongType(Shown(text));
    *out = text == "true";
    return absl::OkStatus();
  }

  absl::Status ReadFloat(double* out, absl::string_view text) const {
    double value = 0;
    if (!IsDecimal(text) || !absl::SimpleAtod(text, &value)) return WrongType(Shown(text));
    const absl::string_view digits = text.substr(0, text.find_first_of("eE"));
    const bool vanished =
        value == 0 && digits.find_first_of("123456789") != absl::string_view::npos;
    if (!std::isfinite(value) || vanished) {
      return Refuse(where_, " is ", Shown(text), "; 64-bit floating point has no such number");
    }
    if (!InRange(key_, value)) return OutOfRange(text);
    *out = value;
    return absl::OkStatus();
  }

  absl::Status ReadBytes(const Key::Bytes& field, absl::string_view text) const {
    const absl::StatusOr<int64_t> bytes = memory::ParseBytes(text);
    if (!bytes.ok()) return WrongType(Shown(text));
    *field.value = *bytes;
    return absl::OkStatus();
  }

  absl::Status ReadChoice(const Key::Choice& field, absl::string_view text) const {
    for (size_t i = 0; i < key_.names.size(); ++i) {
      if (key_.names[i] != text) continue;
      field.set(i);
      return absl::OkStatus();
    }
    return Refuse(where_, " is ", Shown(text), "; expected ", key_.TypeText(), "; did you mean '",
                  NearestName(text, key_.names), "'?");
  }

  absl::Status OutOfRange(absl::string_view text) const {
    return Refuse(where_, " is ", text, "; it must be ", key_.RangeText());
  }

  const Key& key_;
  const std::string where_;
};

// Reads a tree of nodes into one schema. `prefix` stands before paths in messages and is that of
// the record being read: "data.sources[1].".
class TreeReader {
 public:
  TreeReader(Schema& schema, absl::string_view place, std::string prefix = "")
      : schema_(schema), place_(place), prefix_(std::move(prefix)) {}

  absl::Status ReadSection(const std::string& section, const YAML::Node& node) {
    const std::string shown = absl::StrCat(prefix_, section);
    if (node.IsNull()) return absl::OkStatus();  // nothing but a heading
    if (!node.IsMap()) {
      if (shown.empty()) return Refuse(At(node), ": expected sections, found ", Shown(node));
      return Refuse(At(node), ": section '", shown, "' is ", Shown(node), "; expected its keys");
    }
    std::map<std::string, int> lines;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) {
        return Refuse(At(entry.first), ": ", Shown(entry.first), " cannot be a key",
                      shown.empty() ? "" : absl::StrCat(" of section '", shown, "'"));
      }
      const std::string& name = entry.first.Scalar();
      const int line = entry.first.Mark().line + 1;
      const auto [first, is_new] = lines.emplace(name, line);
      if (!is_new) {
        return Refuse(At(entry.first), ": ", Shown(Path(section, name)),
                      " stands twice, first in line ", first->second);
      }
      MF_RETURN_IF_ERROR(ReadEntry(section, name, entry.first, entry.second));
    }
    return absl::OkStatus();
  }

  absl::Status ReadKey(const Key& key, const YAML::Node& node, const std::string& at) {
    const ValueReader reader(key, absl::StrCat(at, ": ", prefix_, key.path()));
    schema_.MarkGiven(key.path());
    if (!node.IsDefined() || node.IsNull()) return reader.WrongType("empty");
    if (auto* field = std::get_if<std::vector<int64_t>*>(&key.field)) {
      return ReadIntList(reader, *field, node);
    }
    if (auto* field = std::get_if<Key::Records>(&key.field)) {
      return ReadRecords(key, reader, *field, node);
    }
    if (!node.IsScalar()) return reader.WrongType(Shown(node));
    return reader.Read(node.Scalar(), IsQuoted(node));
  }

 private:
  absl::Status ReadEntry(const std::string& section, const std::string& name,
                         const YAML::Node& name_node, const YAML::Node& value) {
    const std::string path = JoinPath(section, name);
    if (schema_.HasSection(path)) return ReadSection(path, value);
    const Key* key = schema_.Find(section, name);
    if (key != nullptr) return ReadKey(*key, value, At(name_node));
    const bool is_section = section.empty() && value.IsMap() && !schema_.sections().empty();
    return Refuse(At(name_node), ": unknown ", is_section ? "section " : "key ",
                  Shown(Path(section, name)), "; ", SuggestKey(schema_, section, name));
  }

  absl::Status ReadIntList(const ValueReader& reader, std::vector<int64_t>* out,
                           const YAML::Node& node) {
    if (!node.IsSequence()) return reader.WrongType(Shown(node));
    std::vector<int64_t> values;
    for (const auto& item : node) {
      if (!item.IsScalar() || IsQuoted(item)) {
        return reader.WrongType(absl::StrCat("a list with ", Shown(item)));
      }
      MF_RETURN_IF_ERROR(reader.ReadInt(&values.emplace_back(), item.Scalar()));
    }
    *out = std::move(values);
    return absl::OkStatus();
  }

  absl::Status ReadRecords(const Key& key, const ValueReader& reader, const Key::Records& records,
                           const YAML::Node& node) {
    if (!node.IsSequence()) return reader.WrongType(Shown(node));
    records.resize(node.size());
    for (size_t i = 0; i < node.size(); ++i) {
      if (!node[i].IsMap()) return reader.WrongType(absl::StrCat("a list with ", Shown(node[i])));
      Schema entry;
      records.declare(i, entry);
      TreeReader tree(entry, place_, absl::StrCat(prefix_, key.path(), "[", i, "]."));
      MF_RETURN_IF_ERROR(tree.ReadSection("", node[i]));
    }
    return absl::OkStatus();
  }

  std::string Path(const std::string& section, const std::string& name) const {
    return absl::StrCat(prefix_, JoinPath(section, name));
  }

  std::string At(const YAML::Node& node) const {
    const YAML::Mark mark = node.Mark();
    return mark.is_null() || place_ == "--set" ? place_ : absl::StrCat(place_, ":", mark.line + 1);
  }

  Schema& schema_;
  const std::string place_;
  const std::string prefix_;
};

}  // namespace

absl::Status Schema::Read(absl::string_view yaml, absl::string_view place) {
  return WithYamlDocument(yaml, place, [this, place](const YAML::Node& root) {
    return TreeReader(*this, place).ReadSection("", root);
  });
}

absl::Status Schema::Set(absl::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == absl::string_view::npos) {
    return Refuse("--set ", Shown(assignment), " is not section.key=value");
  }
  const absl::string_view path = assignment.substr(0, equals);
  const absl::string_view value = assignment.substr(equals + 1);
  if (HasSection(path)) return Refuse("--set ", path, " is a section; set one of its keys");
  const size_t dot = path.rfind('.');
  const absl::string_view section = dot == absl::string_view::npos ? "" : path.substr(0, dot);
  const absl::string_view name = dot == absl::string_view::npos ? path : path.substr(dot + 1);
  const Key* key = Find(section, name);
  if (key == nullptr) {
    return Refuse("--set: unknown key ", Shown(path), "; ", SuggestKey(*this, section, name));
  }
  const bool is_list = std::holds_alternative<std::vector<int64_t>*>(key->field) ||
                       std::holds_alternative<Key::Records>(key->field);
  if (!is_list) {
    MarkGiven(key->path());
    return ValueReader(*key, absl::StrCat("--set ", path)).Read(value, /*quoted=*/false);
  }
  return WithYamlDocument(value, "--set", [this, key](const YAML::Node& root) {
    return TreeReader(*this, "--set").ReadKey(*key, root, "--set");
  });
}

}  // namespace meshfold::train
