#include "core/io/safetensors_dir.h"

#include <fnmatch.h>

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/io/json.h"

namespace meshfold {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

absl::Status IndexError(absl::string_view path, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("[Safetensors] '", path, "' ", reason));
}

// Reads an index: tensor name to shard file name, each checked to be a plain file name.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
  MF_ASSIGN_OR_RETURN(nlohmann::json index, ReadJsonFile(path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return IndexError(path, "has no object 'weight_map'");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string()) {
      return IndexError(path, absl::StrCat("gives '", name, "' no file name"));
    }
    std::string file = value.get<std::string>();
    if (file.empty() || file == "." || file == ".." || file.find('/') != std::string::npos ||
        file.find('\0') != std::string::npos) {
      return IndexError(path, absl::StrCat("puts '", name, "' into '", file,
                                           "', which is not a file of the same directory"));
    }
    weight_map[name] = file;
  }
  return weight_map;
}

// True for "model-00001-of-00002.safetensors" and the like.
bool IsShardName(const std::string& name) {
  constexpr char kPattern[] =
      "model-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9].safetensors";
  return fnmatch(kPattern, name.c_str(), 0) == 0;
}

}  // namespace

absl::StatusOr<SafetensorsDir> SafetensorsDir::Open(const std::string& directory) {
  SafetensorsDir dir;
  dir.directory_ = directory;
  std::string single = JoinPath(directory, kSingleFile), index = JoinPath(directory, kIndexFile);
  if (FileExists(single)) {
    MF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(single));
    MF_RETURN_IF_ERROR(dir.AddFile(std::move(file)));
    return dir;
  }
  if (!FileExists(index)) {
    return absl::NotFoundError(absl::StrCat("[Safetensors] '", directory, "' has neither ",
                                            kSingleFile, " nor ", kIndexFile));
  }
  MF_ASSIGN_OR_RETURN(auto weight_map, ReadWeightMap(index));
  std::set<std::string> shards;
  for (const auto& entry : weight_map) shards.insert(entry.second);
  for (const std::string& shard : shards) {
    std::string path = JoinPath(directory, shard);
    if (!FileExists(path)) {
      return absl::NotFoundError(
          absl::StrCat("[Safetensors] the shard '", path, "', named by '", index, "', is missing"));
    }
    MF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
    MF_RETURN_IF_ERROR(dir.AddFile(std::move(file)));
  }
  for (const auto& [name, shard] : weight_map) {
    auto it = dir.files_.find(name);
    if (it == dir.files_.end() || it->second->path() != JoinPath(directory, shard)) {
      return IndexError(
          index, absl::StrCat("puts '", name, "' into '", shard, "', which does not hold it"));
    }
  }
  return dir;
}

absl::Status SafetensorsDir::AddFile(std::shared_ptr<const SafetensorsFile> file) {
  for (const auto& entry : file->tensors()) {
    auto [it, added] = files_.emplace(entry.first, file);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat("[Safetensors] the tensor '", entry.first,
                                                     "' is both in '", it->second->path(),
                                                     "' and in '", file->path(), "'"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> SafetensorsDir::names() const {
  std::vector<std::string> names;
  for (const auto& entry : files_) names.push_back(entry.first);
  return names;
}

bool SafetensorsDir::Has(absl::string_view name) const {
  return files_.count(std::string(name)) > 0;
}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsDir::FileOf(
    absl::string_view name) const {
  auto it = files_.find(std::string(name));
  if (it != files_.end()) return it->second;
  return absl::NotFoundError(absl::StrCat("[Safetensors] '", directory_, "' has no tensor '", name,
                                          "' (it has ", files_.size(), " others)"));
}

absl::StatusOr<SafetensorsInfo> SafetensorsDir::info(absl::string_view name) const {
  MF_ASSIGN_OR_RETURN(auto file, FileOf(name));
  return file->info(name);
}

absl::Status SafetensorsDir::Read(absl::string_view name, const Tensor& dst) const {
  MF_ASSIGN_OR_RETURN(auto file, FileOf(name));
  return file->Read(name, dst);
}

absl::StatusOr<Tensor> SafetensorsDir::Read(absl::string_view name) const {
  MF_ASSIGN_OR_RETURN(auto file, FileOf(name));
  return file->Read(name);
}

absl::StatusOr<Tensor> SafetensorsDir::Read(absl::string_view name, Allocator& allocator) const {
  MF_ASSIGN_OR_RETURN(auto file, FileOf(name));
  return file->Read(name, allocator);
}

absl::StatusOr<std::vector<std::vector<TensorSpec>>> PlanShards(absl::Span<const TensorSpec> specs,
                                                                int64_t max_shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards;
  std::vector<TensorSpec> current;
  int64_t current_bytes = 0;
  for (const TensorSpec& spec : specs) {
    MF_ASSIGN_OR_RETURN(int64_t bytes, TensorBytes(spec.dtype, spec.shape));
    if (bytes > max_shard_bytes) {  // alone, and the current shard goes on
      shards.push_back({spec});
      continue;
    }
    if (current_bytes > max_shard_bytes - bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(spec);
    current_bytes += bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

absl::StatusOr<std::unique_ptr<ShardedSafetensorsWriter>> ShardedSafetensorsWriter::Create(
    const std::string& directory, std::vector<TensorSpec> specs,
    const ShardedWriterOptions& options) {
  std::unique_ptr<ShardedSafetensorsWriter> writer(new ShardedSafetensorsWriter());
  writer->directory_ = directory;
  writer->options_ = options;
  // Names that repeat would meet in no single header when they fall into different shards.
  MF_RETURN_IF_ERROR(FormatSafetensorsHeader(specs, options.metadata).status());
  MF_ASSIGN_OR_RETURN(writer->shards_, PlanShards(specs, options.max_shard_bytes));
  if (writer->shards_.size() > 99999) {
    return absl::InvalidArgumentError(absl::StrCat(
        "[Safetensors] '", directory, "' would have ", writer->shards_.size(),
        " shards, more than 99999; raise max_shard_bytes = ", options.max_shard_bytes));
  }
  for (size_t shard = 0; shard < writer->shards_.size(); ++shard) {
    SortForSafetensors(writer->shards_[shard]);
    for (const TensorSpec& spec : writer->shards_[shard]) {
      writer->shard_of_[spec.name] = shard;
      writer->order_.push_back(spec);
      writer->total_bytes_ += TensorBytes(spec.dtype, spec.shape).value();
    }
  }
  MF_RETURN_IF_ERROR(MakeDirs(directory));
  MF_RETURN_IF_ERROR(writer->OpenShard(0));
  return writer;
}

absl::Status ShardedSafetensorsWriter::Append(absl::string_view name, const Tensor& tensor) {
  MF_RETURN_IF_ERROR(Reach(name));
  return writer_->Append(name, tensor);
}

absl::Status ShardedSafetensorsWriter::AppendBytes(absl::string_view name,
                                                   absl::Span<const char> bytes) {
  MF_RETURN_IF_ERROR(Reach(name));
  return writer_->AppendBytes(name, bytes);
}

absl::Status ShardedSafetensorsWriter::Close() {
  while (open_shard_ + 1 < shards_.size()) MF_RETURN_IF_ERROR(OpenShard(open_shard_ + 1));
  MF_RETURN_IF_ERROR(writer_->Close());
  if (shards_.size() > 1) MF_RETURN_IF_ERROR(WriteIndex());
  return RemoveStale();
}

std::string ShardedSafetensorsWriter::ShardName(size_t shard) const {
  if (shards_.size() == 1) return kSingleFile;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards_.size());
}

// Closes shards that are complete until the one with `name` is open.
absl::Status ShardedSafetensorsWriter::Reach(absl::string_view name) {
  auto it = shard_of_.find(std::string(name));
  if (it == shard_of_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Safetensors] '", name, "' was not announced to '", directory_, "'"));
  }
  while (open_shard_ < it->second) MF_RETURN_IF_ERROR(OpenShard(open_shard_ + 1));
  return absl::OkStatus();
}

absl::Status ShardedSafetensorsWriter::OpenShard(size_t shard) {
  if (writer_ != nullptr) MF_RETURN_IF_ERROR(writer_->Close());
  SafetensorsWriterOptions options{.metadata = options_.metadata, .sort = true};
  MF_ASSIGN_OR_RETURN(writer_, SafetensorsWriter::Create(JoinPath(directory_, ShardName(shard)),
                                                         shards_[shard], options));
  open_shard_ = shard;
  return absl::OkStatus();
}

absl::Status ShardedSafetensorsWriter::WriteIndex() const {
  nlohmann::json index;
  index["metadata"]["total_size"] = total_bytes_;
  index["weight_map"] = nlohmann::json::object();
  for (const auto& [name, shard] : shard_of_) index["weight_map"][name] = ShardName(shard);
  return WriteFile(JoinPath(directory_, kIndexFile), absl::StrCat(index.dump(2), "\n"));
}

absl::Status ShardedSafetensorsWriter::RemoveStale() const {
  std::set<std::string> own = {shards_.size() > 1 ? kIndexFile : kSingleFile};
  for (size_t shard = 0; shard < shards_.size(); ++shard) own.insert(ShardName(shard));
  MF_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(directory_));
  for (const std::string& name : names) {
    bool ours = name == kSingleFile || name == kIndexFile || IsShardName(name);
    if (ours && own.count(name) == 0) MF_RETURN_IF_ERROR(RemoveTree(JoinPath(directory_, name)));
  }
  return SyncDirectory(directory_);
}

}  // namespace meshfold
