#include "models/hf_io.h"

#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "core/io/json.h"
#include "core/nn/init.h"
#include "core/tensor/allocator.h"
#include "core/tensor/box.h"
#include "models/hf_config.h"

namespace meshfold::models {
namespace {

// Lists more than this are cut in messages.
constexpr size_t kMaxListed = 6;

std::string ListNames(const std::vector<std::string>& names) {
  std::vector<std::string> shown(names.begin(), names.begin() + std::min(names.size(), kMaxListed));
  std::string text = absl::StrJoin(shown, ", ");
  if (names.size() > kMaxListed)
    absl::StrAppend(&text, " and ", names.size() - kMaxListed, " more");
  return text;
}

// Buffers that older exports carry and nobody loads.
bool IsIgnored(const std::string& name) {
  return absl::EndsWith(name, "rotary_emb.inv_freq") || absl::StrContains(name, ".mtp.");
}

absl::StatusOr<std::pair<ModelConfig, Family>> ReadConfig(const std::string& path) {
  MF_ASSIGN_OR_RETURN(nlohmann::json json, ReadJsonFile(JoinPath(path, "config.json")));
  if (!json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, "/config.json is not a JSON object"));
  }
  auto explain = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", status.message()));
  };
  absl::StatusOr<std::string> type = HfValue<std::string>(json, "model_type", "");
  if (!type.ok()) return explain(type.status());
  if (type->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path,
                                                   ": config.json has no 'model_type'; known: ",
                                                   absl::StrJoin(FamilyRegistry().Names(), ", ")));
  }
  absl::StatusOr<Family> family = FamilyRegistry().Find(*type);
  if (!family.ok()) return explain(family.status());
  absl::StatusOr<ModelConfig> config = family->from_hf(json);
  if (!config.ok()) return explain(config.status());
  absl::Status valid = Validate(*config);
  if (!valid.ok()) return explain(valid);
  return std::make_pair(*config, *family);
}

// "'<name>' in <file>"
std::string PlaceOf(const SafetensorsDir& tensors, const std::string& name) {
  return absl::StrCat("'", name, "' in ", BaseName(tensors.FileOf(name).value()->path()));
}

// "BF16 [4, 3]"
std::string TypeText(const SafetensorsInfo& info) {
  return absl::StrCat(FileDTypeName(info.dtype), " ", Shape(info.shape).ToString());
}

absl::StatusOr<DType> StoredDType(const SafetensorsDir& tensors, const std::string& name) {
  MF_ASSIGN_OR_RETURN(SafetensorsInfo info, tensors.info(name));
  switch (info.dtype) {
    case FileDType::kF32:
      return DType::kF32;
    case FileDType::kBF16:
      return DType::kBF16;
    case FileDType::kF16:
      return DType::kF16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(tensors.directory(), ": ", PlaceOf(tensors, name), " has type ",
                       FileDTypeName(info.dtype), "; weights may be F32, BF16 or F16"));
  }
}

// Loads one parameter from the tensors it is made of.
class ParameterLoader {
 public:
  ParameterLoader(const HfDirectory& directory, HfDType dtype)
      : directory_(directory), dtype_(dtype) {}

  absl::Status Load(Parameter& parameter) {
    // Names and shapes first, on a tensor without memory: its views are never read.
    int64_t bytes = parameter.shape.numel() * SizeOf(DType::kF32);
    Tensor outline = Tensor::FromStorage(Storage::Wrap(nullptr, bytes, DeviceKind::kHost, nullptr),
                                         parameter.shape, DType::kF32, 0, parameter.shape.cols());
    DType dtype = DType::kF32;
    bool first = true;
    for (const HfTensor& part : Parts(parameter, outline)) {
      consumed_.insert(part.name);
      absl::StatusOr<SafetensorsInfo> info = directory_.tensors.info(part.name);
      if (!info.ok()) {
        missing_.push_back(part.name);
        continue;
      }
      if (Shape(info->shape) != part.view.shape()) {
        misshapen_.push_back(absl::StrCat(PlaceOf(directory_.tensors, part.name), " has shape ",
                                          Shape(info->shape).ToString(), ", the config asks for ",
                                          part.view.shape().ToString()));
        continue;
      }
      MF_ASSIGN_OR_RETURN(DType stored, StoredDType(directory_.tensors, part.name));
      // Parts of different types meet in f32, which holds all of them exactly.
      dtype = first || stored == dtype ? stored : DType::kF32;
      first = false;
    }
    if (dtype_ == HfDType::kOfFile) parameter.dtype = dtype;
    if (!missing_.empty() || !misshapen_.empty()) return absl::OkStatus();  // reported by Finish
    Allocate(parameter);
    const Tensor& own = parameter.value.data();
    if (parameter.part.IsWhole(parameter.shape)) return Fill(parameter, own);
    // A file's tensor may hold a part of the part only: the whole is put together, then cut.
    const Tensor whole = Tensor::Contiguous(parameter.shape, own.dtype(), SystemHostAllocator());
    MF_RETURN_IF_ERROR(Fill(parameter, whole));
    CopyFromWhole(whole, parameter.part, own);
    return absl::OkStatus();
  }

  absl::Status Finish() {
    std::vector<std::string> unexpected;
    for (const std::string& name : directory_.tensors.names()) {
      if (consumed_.count(name) == 0 && !IsIgnored(name) && !IsTiedHead(name)) {
        unexpected.push_back(name);
      }
    }
    std::vector<std::string> faults;
    if (!missing_.empty()) faults.push_back(absl::StrCat("missing: ", ListNames(missing_)));
    if (!misshapen_.empty()) faults.push_back(ListNames(misshapen_));
    if (!unexpected.empty()) {
      faults.push_back(absl::StrCat("not part of the model: ", ListNames(unexpected)));
    }
    if (faults.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        directory_.path, ": tensors do not match config.json; ", absl::StrJoin(faults, "; ")));
  }

 private:
  // Reads all of `parameter` into `whole`, of its global shape.
  absl::Status Fill(const Parameter& parameter, const Tensor& whole) const {
    for (const HfTensor& part : Parts(parameter, whole)) {
      MF_RETURN_IF_ERROR(directory_.tensors.Read(part.name, part.view));
    }
    return absl::OkStatus();
  }
  std::vector<HfTensor> Parts(const Parameter& parameter, const Tensor& tensor) const {
    return HfTensorsOf(directory_.family, parameter.name, tensor, directory_.expert_form);
  }
  bool IsTiedHead(const std::string& name) const {
    return directory_.config.tie_embeddings && name == "lm_head.weight";
  }

  const HfDirectory& directory_;
  HfDType dtype_;
  std::set<std::string> consumed_;
  std::vector<std::string> missing_, misshapen_;
};

absl::Status CheckTiedHead(const HfDirectory& directory) {
  constexpr char kHead[] = "lm_head.weight", kEmbedding[] = "model.embed_tokens.weight";
  const SafetensorsDir& tensors = directory.tensors;
  if (!directory.config.tie_embeddings || !tensors.Has(kHead)) return absl::OkStatus();
  MF_ASSIGN_OR_RETURN(SafetensorsInfo head, tensors.info(kHead));
  MF_ASSIGN_OR_RETURN(SafetensorsInfo embedding, tensors.info(kEmbedding));
  MF_ASSIGN_OR_RETURN(auto head_file, tensors.FileOf(kHead));
  MF_ASSIGN_OR_RETURN(auto embedding_file, tensors.FileOf(kEmbedding));
  MF_ASSIGN_OR_RETURN(auto head_bytes, head_file->bytes(kHead));
  MF_ASSIGN_OR_RETURN(auto embedding_bytes, embedding_file->bytes(kEmbedding));
  if (TypeText(head) == TypeText(embedding) && head_bytes == embedding_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(directory.path, ": config.json ties the embeddings, but ",
                   PlaceOf(tensors, kHead), ", ", TypeText(head), ", is not equal to ",
                   PlaceOf(tensors, kEmbedding), ", ", TypeText(embedding)));
}

// True when `dtype`, bf16 or f16, holds every element of an f32 `tensor`.
bool Holds(DType dtype, const Tensor& tensor) {
  bool exact = true;
  ForEachPiece<float>(tensor, 0, tensor.numel(), [&](const float* x, int64_t, int64_t count) {
    for (int64_t i = 0; exact && i < count; ++i) {
      exact = x[i] == (dtype == DType::kBF16 ? ToFloat(ToBF16(x[i])) : ToFloat(ToF16(x[i])));
    }
  });
  return exact;
}

// How a part of a parameter is stored in a model of type `model_dtype`.
TensorSpec SpecInModel(const HfTensor& part, DType model_dtype) {
  TensorSpec spec = SpecOf(part.name, part.view);
  if (part.view.dtype() == DType::kF32 && model_dtype != DType::kF32 &&
      Holds(model_dtype, part.view)) {
    spec.dtype = FileDTypeOf(model_dtype);
  }
  return spec;
}

const char* HfDTypeName(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfConfig(const std::string& path) {
  MF_ASSIGN_OR_RETURN(auto read, ReadConfig(path));
  return read.first;
}

absl::StatusOr<HfDirectory> OpenHf(const std::string& path) {
  MF_ASSIGN_OR_RETURN(auto read, ReadConfig(path));
  MF_ASSIGN_OR_RETURN(SafetensorsDir tensors, SafetensorsDir::Open(path));
  HfExpertForm form = HfExpertForm::kSplit;
  for (const std::string& name : tensors.names()) {
    if (absl::EndsWith(name, ".experts.gate_up_proj")) form = HfExpertForm::kFused;
  }
  return HfDirectory{path, read.first, read.second, form, std::move(tensors)};
}

absl::Status LoadHfWeights(const HfDirectory& directory, Module& model, HfDType dtype) {
  ParameterLoader loader(directory, dtype);
  absl::Status status;
  model.VisitParameters([&](Parameter& parameter) {
    if (status.ok()) status = loader.Load(parameter);
  });
  MF_RETURN_IF_ERROR(status);
  MF_RETURN_IF_ERROR(loader.Finish());
  return CheckTiedHead(directory);
}

absl::Status WriteHf(const std::string& path, const ModelConfig& config, Module& model,
                     const HfWriteOptions& options) {
  MF_ASSIGN_OR_RETURN(Family family, FamilyRegistry().Find(config.family));
  MF_ASSIGN_OR_RETURN(nlohmann::json json, family.to_hf(config));
  std::map<std::string, Tensor> tensors;
  std::vector<TensorSpec> specs;
  std::vector<Parameter*> parameters = ParametersOf(model);
  const DType model_dtype = parameters.front()->dtype;  // of the embedding
  for (const Parameter* parameter : parameters) {
    if (!parameter->part.IsWhole(parameter->shape)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": this rank holds the part ", parameter->part.ToString(), " of '", parameter->name,
          "' ", parameter->shape.ToString(),
          "; a Hugging Face directory is written by one process that holds all: save a checkpoint "
          "and use `meshfold convert --to hf`"));
    }
    for (HfTensor& part :
         HfTensorsOf(family, parameter->name, parameter->value.data(), options.expert_form)) {
      specs.push_back(SpecInModel(part, model_dtype));
      tensors.emplace(std::move(part.name), std::move(part.view));
    }
  }
  json["architectures"] = {family.architecture};
  json["model_type"] = family.model_type;
  json["dtype"] = HfDTypeName(model_dtype);
  MF_ASSIGN_OR_RETURN(auto writer,
                      ShardedSafetensorsWriter::Create(path, specs, {options.max_shard_bytes}));
  for (const TensorSpec& spec : writer->order()) {
    MF_RETURN_IF_ERROR(writer->Append(spec.name, tensors.at(spec.name)));
  }
  MF_RETURN_IF_ERROR(writer->Close());
  return WriteFile(JoinPath(path, "config.json"), json.dump(2) + "\n");
}

}  // namespace meshfold::models
