#include "train/yaml_document.h"

#include <cstddef>
#include <exception>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "yaml-cpp/eventhandler.h"

namespace meshfold::train {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 100000;  // aliases counted as often as they are used

template <typename... Args>
absl::Status Refuse(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Counts every use of every node, so that aliases in aliases cannot multiply, and bounds the depth,
// so that an alias of itself ends.
absl::Status CheckSize(const YAML::Node& node, absl::string_view place, int depth, int& num_nodes) {
  if (depth > kMaxDepth) {
    return Refuse(place, ":", node.Mark().line + 1, ": nested deeper than ", kMaxDepth, " levels");
  }
  if (++num_nodes > kMaxNodes) {
    return Refuse(place, ": more than ", kMaxNodes, " values, aliases expanded");
  }
  if (node.IsMap()) {
    for (const auto& entry : node) {
      MF_RETURN_IF_ERROR(CheckSize(entry.first, place, depth + 1, num_nodes));
      MF_RETURN_IF_ERROR(CheckSize(entry.second, place, depth + 1, num_nodes));
    }
  } else if (node.IsSequence()) {
    for (const auto& item : node) {
      MF_RETURN_IF_ERROR(CheckSize(item, place, depth + 1, num_nodes));
    }
  }
  return absl::OkStatus();
}

class IgnoredEvents : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// YAML::Load stops in silence after the first document, or at a token that cannot start one;
// YAML::LoadAll never ends at such a token.
bool HasMoreThanOneDocument(const std::string& yaml) {
  std::istringstream stream(yaml);
  YAML::Parser parser(stream);
  IgnoredEvents events;
  return parser.HandleNextDocument(events) && parser.HandleNextDocument(events);
}

}  // namespace

absl::Status WithYamlDocument(absl::string_view yaml, absl::string_view place,
                              const std::function<absl::Status(const YAML::Node&)>& read) {
  if (yaml.size() > kMaxTextBytes) {
    return Refuse(place, ": ", yaml.size(), " bytes of YAML; at most ", kMaxTextBytes, " are read");
  }
  try {
    const std::string text(yaml);
    if (HasMoreThanOneDocument(text)) {
      return Refuse(place, ": not a single YAML document");
    }
    const YAML::Node root = YAML::Load(text);
    int num_nodes = 0;
    MF_RETURN_IF_ERROR(CheckSize(root, place, 0, num_nodes));
    return read(root);
  } catch (const YAML::Exception& error) {
    const std::string line = error.mark.is_null() ? "" : absl::StrCat(":", error.mark.line + 1);
    return Refuse(place, line, ": not valid YAML: ", error.msg);
  } catch (const std::exception& error) {
    return Refuse(place, ": not valid YAML: ", error.what());
  }
}

}  // namespace meshfold::train
