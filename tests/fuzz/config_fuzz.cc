// Any text is a config or an error, never a crash; a config that is taken survives writing out.
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/check.h"
#include "train/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  // The part up to the first NUL is the file, the rest an override.
  const size_t end = text.find('\0');
  std::vector<std::string> overrides;
  if (end != std::string::npos) overrides.push_back(text.substr(end + 1));
  const absl::StatusOr<meshfold::train::Config> config =
      meshfold::train::ParseConfig(text.substr(0, end), "fuzz.yaml", overrides);
  if (!config.ok()) {
    MF_CHECK(!config.status().message().empty());
    return 0;
  }
  const std::string resolved = meshfold::train::ResolvedYaml(*config);
  const absl::StatusOr<meshfold::train::Config> again =
      meshfold::train::ParseConfig(resolved, "resolved");
  MF_CHECK(again.ok()) << again.status().message() << "\n" << resolved;
  MF_CHECK(meshfold::train::ResolvedYaml(*again) == resolved) << "\n" << resolved;
  return 0;
}
