#include "tests/train/convergence.h"

#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "core/io/gzip.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "train/trainer.h"
#include "xxhash.h"

namespace meshfold::train {
namespace {

constexpr char kFolder[] = "tests/goldens/convergence";

std::string PathOf(const std::string& name, const char* ending) {
  return JoinPath(kFolder, absl::StrCat(name, ending));
}

// Lengths of the dictionary's entries: an entry starts at a line that is not indented.
std::vector<int64_t> EntryBorders(const std::string& text) {
  std::vector<int64_t> borders = {0};
  for (size_t i = 1; i < text.size(); ++i) {
    bool starts = text[i - 1] == '\n' && text[i] != '\n' && text[i] != ' ' && text[i] != '\t';
    if (starts) borders.push_back(static_cast<int64_t>(i));
  }
  borders.push_back(static_cast<int64_t>(text.size()));
  return borders;
}

}  // namespace

std::vector<std::string> ConvergenceCases() {
  std::vector<std::string> names;
  absl::StatusOr<std::vector<std::string>> files = ListDirectory(kFolder);
  if (!files.ok()) return names;
  for (const std::string& file : *files) {
    if (absl::EndsWith(file, ".yaml")) names.emplace_back(absl::StripSuffix(file, ".yaml"));
  }
  return names;
}

absl::Status WriteConvergenceTokens(const std::string& path) {
  MF_ASSIGN_OR_RETURN(std::string text, ReadGzipFile(kConvergenceText, int64_t{1} << 24));
  char hash[17];
  std::snprintf(hash, sizeof(hash), "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  if (absl::string_view(hash) != kConvergenceTextHash) {
    return absl::FailedPreconditionError(absl::StrCat(kConvergenceText, " has hash ", hash,
                                                      ", the goldens were made with ",
                                                      kConvergenceTextHash));
  }
  std::vector<uint8_t> bytes(text.begin(), text.end());
  std::vector<int64_t> borders = EntryBorders(text);
  int64_t num_borders = static_cast<int64_t>(borders.size());
  ExecContext context;
  context.allocator = &SystemHostAllocator();
  ScopedExecContext scope(context);
  return WriteSafetensors(
      path, {{"tokens", TensorFromVector(bytes, {static_cast<int64_t>(bytes.size())})},
             {"cu_seqlens", TensorFromVector(borders, {num_borders})}});
}

absl::StatusOr<std::vector<double>> RunConvergence(const std::string& name,
                                                   const std::string& tokens_path, int64_t steps) {
  MF_ASSIGN_OR_RETURN(Config config, LoadConfig(PathOf(name, ".yaml"),
                                                {absl::StrCat("data.source=", tokens_path)}));
  Logger logger("", LogLevel::kWarning);
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                      Trainer::Create(config, {.from = "none"}, logger));
  std::vector<double> losses;
  while (trainer->step() < steps) {
    MF_ASSIGN_OR_RETURN(StepMetrics metrics, trainer->Step());
    losses.push_back(metrics.loss);
  }
  return losses;
}

absl::StatusOr<std::vector<double>> ReadConvergence(const std::string& name) {
  std::string path = PathOf(name, ".json");
  MF_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(path));
  auto losses = json.find("losses");
  if (losses == json.end() || !losses->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has no list 'losses'"));
  }
  return losses->get<std::vector<double>>();
}

absl::Status WriteConvergence(const std::string& name, const std::vector<double>& losses) {
  nlohmann::json json = {{"losses", losses}};
  return WriteFile(PathOf(name, ".json"), json.dump(1) + "\n");
}

}  // namespace meshfold::train
