#include "parallel/checkpoint_dir.h"

#include <cstdio>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"

namespace meshfold::parallel {
namespace {

constexpr char kLatestName[] = "latest";
constexpr char kIncomplete[] = ".incomplete";
constexpr char kReplaced[] = ".replaced";

std::string StepName(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step_%08lld", static_cast<long long>(step));
  return name;
}

// The step that `name` + `suffix` stands for; false for any other name.
bool ParseStepName(absl::string_view name, absl::string_view suffix, int64_t& step) {
  if (!absl::ConsumeSuffix(&name, suffix)) return false;
  absl::string_view digits = absl::StripPrefix(name, "step_");
  return absl::SimpleAtoi(digits, &step) && step >= 0 && StepName(step) == name;
}

bool IsWhole(const std::string& path) { return FileExists(JoinPath(path, kCheckpointIndexName)); }

// Paths of the whole checkpoints by step: what has the step's name, or else what was about to be
// replaced when its writer was killed.
std::map<int64_t, std::string> WholeCheckpoints(const std::string& root) {
  std::map<int64_t, std::string> found;
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(root);
  if (!names.ok()) return found;
  for (const std::string& name : *names) {
    int64_t step;
    std::string path = JoinPath(root, name);
    if (!IsWhole(path)) continue;
    if (ParseStepName(name, "", step)) found[step] = path;
    if (ParseStepName(name, kReplaced, step)) found.emplace(step, path);
  }
  return found;
}

// As MakeDirs, and the new directories survive a crash of the machine.
absl::Status MakeDirsDurably(const std::string& path) {
  if (path.empty() || IsDirectory(path)) return absl::OkStatus();
  std::string parent = DirName(path);
  if (parent != path) MF_RETURN_IF_ERROR(MakeDirsDurably(parent));
  MF_RETURN_IF_ERROR(MakeDirs(path));
  return SyncDirectory(parent);
}

// Removes a whole checkpoint under the name `doomed`, so that a half-removed one is never taken for
// whole.
absl::Status RemoveCheckpoint(const std::string& path, const std::string& doomed) {
  MF_RETURN_IF_ERROR(RemoveTree(doomed));
  absl::Status status = RenameDurably(path, doomed);
  status.Update(RemoveTree(doomed));  // also when the rename is done but was not made durable
  return status;
}

}  // namespace

std::string StepPath(const std::string& root, int64_t step) {
  return JoinPath(root, StepName(step));
}

std::string IncompletePath(const std::string& root, int64_t step) {
  return StepPath(root, step) + kIncomplete;
}

absl::Status PrepareCheckpointRoot(const std::string& root) {
  MF_RETURN_IF_ERROR(MakeDirsDurably(root));
  MF_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(root));
  for (const std::string& name : names) {
    int64_t step;
    std::string path = JoinPath(root, name);
    bool is_left_over = ParseStepName(name, kIncomplete, step) ||
                        absl::StartsWith(name, absl::StrCat(kLatestName, ".tmp"));
    if (ParseStepName(name, kReplaced, step)) {
      std::string wanted = StepPath(root, step);
      if (!FileExists(wanted)) MF_RETURN_IF_ERROR(RenameDurably(path, wanted));
      is_left_over = IsWhole(wanted);
    }
    if (is_left_over) MF_RETURN_IF_ERROR(RemoveTree(path));
  }
  return absl::OkStatus();
}

absl::Status PublishCheckpoint(const std::string& root, int64_t step) {
  const std::string path = StepPath(root, step), partial = path + kIncomplete;
  const std::string replaced = path + kReplaced;
  const bool replaces = FileExists(path);
  absl::Status status;
  if (replaces) {
    MF_RETURN_IF_ERROR(RemoveTree(replaced));
    status = RenameDurably(path, replaced);
  }
  if (status.ok()) status = RenameDurably(partial, path);
  if (!status.ok()) {
    // Nothing more can be done when this fails too: readers take `replaced` as it is.
    if (replaces && !FileExists(path)) RenameDurably(replaced, path).IgnoreError();
    return status;
  }
  MF_RETURN_IF_ERROR(RemoveTree(replaced));
  return WriteFile(JoinPath(root, kLatestName), StepName(step) + "\n");
}

absl::Status PruneCheckpoints(const std::string& root, int64_t keep, int64_t newest) {
  std::map<int64_t, std::string> whole = WholeCheckpoints(root);
  int64_t surplus = static_cast<int64_t>(whole.size()) - keep;
  for (const auto& [step, path] : whole) {
    if (surplus <= 0) break;
    if (step == newest) continue;
    MF_RETURN_IF_ERROR(RemoveCheckpoint(path, IncompletePath(root, step)));
    --surplus;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root) {
  std::map<int64_t, std::string> whole = WholeCheckpoints(root);
  absl::StatusOr<std::string> latest = ReadFile(JoinPath(root, kLatestName), 4096);
  int64_t step;
  if (latest.ok() && ParseStepName(absl::StripSuffix(*latest, "\n"), "", step)) {
    auto it = whole.find(step);
    if (it != whole.end()) return it->second;
  }
  if (whole.empty()) {
    return absl::NotFoundError(absl::StrCat("[Checkpoint] no whole checkpoint in '", root, "'"));
  }
  return whole.rbegin()->second;
}

}  // namespace meshfold::parallel
