#include "parallel/shared_save.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "parallel/checkpoint_dir.h"
#include "parallel/checkpoint_index.h"
#include "parallel/rank_texts.h"

namespace meshfold::parallel {
namespace {

// Writes this rank's shard, if it has anything to write, and describes it.
absl::StatusOr<std::string> WriteOwnShard(int rank, const std::string& directory,
                                          absl::Span<const TensorPart> parts) {
  if (parts.empty()) return FormatTensors({});
  MF_ASSIGN_OR_RETURN(CheckpointTensors written, WriteShard(directory, ShardName(rank), parts));
  return FormatTensors(written);
}

// What the ranks wrote, from their descriptions; on rank 0.
absl::StatusOr<CheckpointTensors> MergeDescriptions(const std::string& directory,
                                                    const std::vector<std::string>& texts) {
  std::vector<CheckpointTensors> shards;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    MF_ASSIGN_OR_RETURN(CheckpointTensors shard,
                        ParseTensors(texts[rank], absl::StrCat("what rank ", rank, " wrote")));
    const std::string path = JoinPath(directory, ShardName(static_cast<int64_t>(rank)));
    if (!shard.empty() && !FileExists(path)) {
      return absl::FailedPreconditionError(
          absl::StrCat("[Checkpoint] rank ", rank, " wrote '", path,
                       "', which rank 0 does not see; all ranks must share this directory"));
    }
    shards.push_back(std::move(shard));
  }
  absl::StatusOr<CheckpointTensors> merged = MergeShards(shards);
  if (merged.ok()) return merged;
  return absl::InvalidArgumentError(absl::StrCat("[Checkpoint] ", merged.status().message()));
}

// All shards on disk, and on rank 0 what they hold. Errors of one rank are all ranks'.
absl::StatusOr<CheckpointTensors> WriteShards(
    comm::Communicator& world, const std::string& root, const CheckpointState& state,
    const absl::StatusOr<std::vector<TensorPart>>& parts) {
  const std::string directory = IncompletePath(root, state.step);
  absl::Status status = parts.status();
  if (status.ok() && world.rank() == 0) status = StartCheckpoint(root, state.step);
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, status));
  absl::StatusOr<std::string> description = WriteOwnShard(world.rank(), directory, *parts);
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, description.status()));
  MF_ASSIGN_OR_RETURN(std::vector<std::string> texts, GatherTexts(world, *description));
  absl::StatusOr<CheckpointTensors> merged = MergeDescriptions(directory, texts);
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, merged.status()));
  return merged;
}

}  // namespace

absl::StatusOr<std::string> SaveShared(comm::Communicator& world, const std::string& root,
                                       const CheckpointState& state,
                                       const absl::StatusOr<std::vector<TensorPart>>& parts,
                                       const SaveOptions& options) {
  absl::StatusOr<CheckpointTensors> written = WriteShards(world, root, state, parts);
  if (!written.ok()) {
    if (world.rank() == 0) AbandonCheckpoint(root, state.step);
    return written.status();
  }
  absl::Status status;
  if (world.rank() == 0) status = FinishCheckpoint(root, state, *std::move(written), options);
  MF_RETURN_IF_ERROR(AgreeOnStatus(world, status));
  return StepPath(root, state.step);
}

}  // namespace meshfold::parallel
