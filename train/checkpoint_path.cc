#include "train/checkpoint_path.h"

#include "core/io/file.h"
#include "parallel/checkpoint.h"

namespace meshfold::train {

std::string CheckpointRoot(const Config& config) {
  if (!config.checkpoint.dir.empty()) return config.checkpoint.dir;
  return JoinPath(config.run.dir, "checkpoints");
}

absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path) {
  if (FileExists(JoinPath(path, "index.json"))) return path;
  std::string inner = JoinPath(path, "checkpoints");
  return parallel::LatestCheckpoint(IsDirectory(inner) ? inner : path);
}

}  // namespace meshfold::train
