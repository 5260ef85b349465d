#include "core/io/json.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"

namespace meshfold {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;

// Watches the parser for what it lets pass.
class Watcher {
 public:
  bool See(int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) Fail(absl::StrCat("nests deeper than ", kMaxDepth, " levels"));
    }
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        Fail(absl::StrCat("repeats the key '", absl::string_view(key).substr(0, 80), "'"));
      }
    }
    return true;
  }
  const std::string& error() const { return error_; }

 private:
  void Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
  }

  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, absl::string_view source) {
  Watcher watcher;
  std::string error;
  try {
    json value = json::parse(text.begin(), text.end(),
                             [&](int depth, json::parse_event_t event, json& parsed) {
                               return watcher.See(depth, event, parsed);
                             });
    error = watcher.error();
    if (error.empty()) return value;
  } catch (const json::exception& e) {
    error = absl::StrCat("is not valid JSON: ", e.what());
  }
  return absl::InvalidArgumentError(absl::StrCat("[Json] '", source, "' ", error));
}

absl::StatusOr<json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  MF_ASSIGN_OR_RETURN(std::string text, ReadFile(path, max_bytes));
  return ParseJson(text, path);
}

}  // namespace meshfold
