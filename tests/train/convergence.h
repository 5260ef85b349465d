// Training runs whose losses are committed: small configs (tests/goldens/convergence/*.yaml) on a
// text that a Debian package ships.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshfold::train {

// The Jargon File, public domain, package dict-jargon 4.4.7-3.1.
inline constexpr char kConvergenceText[] = "/usr/share/dictd/jargon.dict.dz";
// XXH3-64 of the decompressed text.
inline constexpr char kConvergenceTextHash[] = "528e3ef777b4ccb5";

// Names of the configs, without ".yaml".
std::vector<std::string> ConvergenceCases();

// Writes the text as token documents, one for each entry of the dictionary, to `path`
// (safetensors with tokens and cu_seqlens). NotFound when the package is missing,
// FailedPrecondition when the text is another one.
absl::Status WriteConvergenceTokens(const std::string& path);

// Loss of each of the first `steps` steps of a case, trained on the tokens at `tokens_path`.
absl::StatusOr<std::vector<double>> RunConvergence(const std::string& name,
                                                   const std::string& tokens_path, int64_t steps);

// The committed losses of a case; NotFound when there are none.
absl::StatusOr<std::vector<double>> ReadConvergence(const std::string& name);
// Commits losses.
absl::Status WriteConvergence(const std::string& name, const std::vector<double>& losses);

}  // namespace meshfold::train
