// Models as Hugging Face stores them: one safetensors file, or shards with an index.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/io/safetensors.h"

namespace meshfold {

// "model.safetensors" of a directory, or else "model.safetensors.index.json" and the shards that it
// names, read as one set of tensors: the union of what the shards hold. Opening fails when neither
// is there (NotFound), a shard is missing (NotFound, naming shard and index), a tensor of the index
// is not in its shard, a tensor is in two shards, or the index names a file outside the directory
// (InvalidArgument). Immutable and thread-safe; copies share the mappings.
class SafetensorsDir {
 public:
  static absl::StatusOr<SafetensorsDir> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  std::vector<std::string> names() const;
  bool Has(absl::string_view name) const;
  // The file that holds `name`: everything SafetensorsFile offers. NotFound for an unknown name.
  absl::StatusOr<std::shared_ptr<const SafetensorsFile>> FileOf(absl::string_view name) const;
  // As SafetensorsFile's.
  absl::StatusOr<SafetensorsInfo> info(absl::string_view name) const;
  absl::Status Read(absl::string_view name, const Tensor& dst) const;
  absl::StatusOr<Tensor> Read(absl::string_view name) const;
  absl::StatusOr<Tensor> Read(absl::string_view name, Allocator& allocator) const;

 private:
  absl::Status AddFile(std::shared_ptr<const SafetensorsFile> file);

  std::string directory_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files_;  // by tensor name
};

struct ShardedWriterOptions {
  int64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

// Cuts tensors into shards as Hugging Face does: in the order given, a shard ends where the next
// tensor would take it over `max_shard_bytes` of data; a larger tensor has a shard of its own.
// InvalidArgument when a size overflows.
absl::StatusOr<std::vector<std::vector<TensorSpec>>> PlanShards(absl::Span<const TensorSpec> specs,
                                                                int64_t max_shard_bytes);

// Writes a directory that SafetensorsDir and Hugging Face read: "model.safetensors" when one shard
// is enough, else "model-00001-of-0000N.safetensors", ... and, last, the index. Close also removes
// what an earlier export into the directory left, so that no reader takes the old files for the
// new. One shard is open at a time. Single-threaded.
class ShardedSafetensorsWriter {
 public:
  // Makes the directory. Tensors are divided in the order of `specs`.
  static absl::StatusOr<std::unique_ptr<ShardedSafetensorsWriter>> Create(
      const std::string& directory, std::vector<TensorSpec> specs,
      const ShardedWriterOptions& options = {});

  // The order in which tensors must be appended: shard by shard, sorted inside each.
  const std::vector<TensorSpec>& order() const { return order_; }

  // As SafetensorsWriter's.
  absl::Status Append(absl::string_view name, const Tensor& tensor);
  absl::Status AppendBytes(absl::string_view name, absl::Span<const char> bytes);
  absl::Status Close();

 private:
  ShardedSafetensorsWriter() = default;
  std::string ShardName(size_t shard) const;
  absl::Status Reach(absl::string_view name);
  absl::Status OpenShard(size_t shard);
  absl::Status WriteIndex() const;
  absl::Status RemoveStale() const;

  std::string directory_;
  ShardedWriterOptions options_;
  std::vector<std::vector<TensorSpec>> shards_;  // sorted inside each
  std::vector<TensorSpec> order_;
  std::map<std::string, size_t> shard_of_;  // by tensor name
  int64_t total_bytes_ = 0;
  size_t open_shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
};

}  // namespace meshfold
