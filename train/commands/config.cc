#include "train/config.h"

#include <cstdio>

#include "core/base/status_macros.h"
#include "train/commands/commands.h"

namespace meshfold::train {

absl::Status RunConfig(const ConfigOptions& options) {
  int wanted =
      (options.doc ? 1 : 0) + (options.schema ? 1 : 0) + (options.resolve_path.empty() ? 0 : 1);
  if (wanted != 1) {
    return absl::InvalidArgumentError("give one of --doc, --schema and --resolve CONFIG.yaml");
  }
  std::string text;
  if (options.doc) {
    text = ConfigDoc();
  } else if (options.schema) {
    text = ConfigJsonSchema();
  } else {
    MF_ASSIGN_OR_RETURN(Config config, LoadConfig(options.resolve_path, options.overrides));
    text = ResolvedYaml(config);
  }
  std::printf("%s", text.c_str());
  return absl::OkStatus();
}

}  // namespace meshfold::train
