#include <cstdio>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "core/io/safetensors.h"
#include "core/io/safetensors_dir.h"
#include "models/hf_io.h"
#include "parallel/checkpoint.h"
#include "train/checkpoint_path.h"
#include "train/commands/commands.h"

namespace meshfold::train {
namespace {

void PrintTensor(const std::string& name, const char* dtype, const Shape& shape) {
  std::printf("  %-60s %-5s %s\n", name.c_str(), dtype, shape.ToString().c_str());
}

absl::Status InspectFile(const std::string& path) {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
  std::printf("safetensors file, %d tensors\n", static_cast<int>(file->tensors().size()));
  for (const auto& [name, info] : file->tensors()) {
    PrintTensor(name, FileDTypeName(info.dtype), Shape(info.shape));
  }
  return absl::OkStatus();
}

absl::Status InspectHf(const std::string& path) {
  MF_ASSIGN_OR_RETURN(models::HfDirectory directory, models::OpenHf(path));
  std::printf("Hugging Face directory, family %s, %lld parameters (%lld active a token)\n",
              directory.config.family.c_str(),
              static_cast<long long>(models::NumParameters(directory.config)),
              static_cast<long long>(models::NumActiveParameters(directory.config)));
  for (const std::string& name : directory.tensors.names()) {
    MF_ASSIGN_OR_RETURN(SafetensorsInfo info, directory.tensors.info(name));
    PrintTensor(name, FileDTypeName(info.dtype), Shape(info.shape));
  }
  return absl::OkStatus();
}

absl::Status InspectCheckpoint(const std::string& path) {
  MF_ASSIGN_OR_RETURN(parallel::Checkpoint checkpoint, parallel::Checkpoint::Open(path));
  std::printf("checkpoint %s, step %lld\n", path.c_str(),
              static_cast<long long>(checkpoint.state().step));
  for (const auto& [name, value] : checkpoint.state().integers) {
    std::printf("  %-60s %lld\n", name.c_str(), static_cast<long long>(value));
  }
  for (const auto& [name, info] : checkpoint.tensors()) {
    PrintTensor(name, DTypeName(info.dtype), info.shape);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunInspect(const InspectOptions& options) {
  if (!FileExists(options.path)) {
    return absl::NotFoundError(absl::StrCat("'", options.path, "' does not exist"));
  }
  if (!IsDirectory(options.path)) return InspectFile(options.path);
  if (FileExists(JoinPath(options.path, "config.json"))) return InspectHf(options.path);
  absl::StatusOr<std::string> checkpoint = ResolveCheckpoint(options.path);
  if (checkpoint.ok()) return InspectCheckpoint(*checkpoint);
  return absl::InvalidArgumentError(
      absl::StrCat("'", options.path, "' holds neither a checkpoint nor a Hugging Face model"));
}

}  // namespace meshfold::train
