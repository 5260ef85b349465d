#include "core/io/safetensors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"
#include "core/io/elements.h"

namespace meshfold {
namespace {

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

int64_t NumElements(const SafetensorsInfo& info) {
  return (info.end - info.begin) / SizeOf(info.dtype);
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::shared_ptr<const MappedFile> file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)) {}

absl::StatusOr<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(
    const std::string& path) {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  MF_ASSIGN_OR_RETURN(SafetensorsHeader header,
                      ParseSafetensorsHeader(file->bytes(), file->bytes().size(), path));
  return std::shared_ptr<const SafetensorsFile>(
      new SafetensorsFile(std::move(file), std::move(header)));
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& entry : header_.tensors) names.push_back(entry.first);
  return names;
}

bool SafetensorsFile::Has(absl::string_view name) const { return Find(name).ok(); }

absl::StatusOr<SafetensorsInfo> SafetensorsFile::info(absl::string_view name) const {
  MF_ASSIGN_OR_RETURN(const SafetensorsInfo* info, Find(name));
  return *info;
}

absl::Status SafetensorsFile::Read(absl::string_view name, const Tensor& dst) const {
  MF_ASSIGN_OR_RETURN(const SafetensorsInfo* info, Find(name));
  if (dst.shape() != Shape(info->shape)) {
    return Explain(absl::InvalidArgumentError(absl::StrCat("has shape ", ShapeText(info->shape),
                                                           " in the file, ", dst.shape().ToString(),
                                                           " is wanted")),
                   name);
  }
  return Explain(ReadElements(info->dtype, DataOf(*info), dst), name);
}

absl::Status SafetensorsFile::ReadRange(absl::string_view name, int64_t begin,
                                        const Tensor& dst) const {
  MF_ASSIGN_OR_RETURN(const SafetensorsInfo* info, Find(name));
  if (begin < 0 || begin > NumElements(*info) || dst.numel() > NumElements(*info) - begin) {
    return Explain(
        absl::OutOfRangeError(absl::StrCat("has ", NumElements(*info), " elements, ", dst.numel(),
                                           " from ", begin, " on are wanted")),
        name);
  }
  const char* src = DataOf(*info) + begin * SizeOf(info->dtype);
  return Explain(ReadElements(info->dtype, src, dst), name);
}

absl::StatusOr<Tensor> SafetensorsFile::Read(absl::string_view name) const {
  return Read(name, *CurrentContext().allocator);
}

absl::StatusOr<Tensor> SafetensorsFile::Read(absl::string_view name, Allocator& allocator) const {
  MF_ASSIGN_OR_RETURN(const SafetensorsInfo* info, Find(name));
  absl::StatusOr<DType> dtype = TensorTypeOf(info->dtype);
  if (!dtype.ok()) return Explain(dtype.status(), name);
  Shape shape(info->shape);
  MF_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage,
                      Storage::Allocate(shape.numel() * SizeOf(*dtype), allocator));
  Tensor tensor = Tensor::FromStorage(std::move(storage), shape, *dtype, 0, shape.cols());
  MF_RETURN_IF_ERROR(Read(name, tensor));
  return tensor;
}

absl::StatusOr<absl::Span<const char>> SafetensorsFile::bytes(absl::string_view name) const {
  MF_ASSIGN_OR_RETURN(const SafetensorsInfo* info, Find(name));
  return absl::Span<const char>(DataOf(*info), info->end - info->begin);
}

absl::StatusOr<const SafetensorsInfo*> SafetensorsFile::Find(absl::string_view name) const {
  auto it = header_.tensors.find(std::string(name));
  if (it != header_.tensors.end()) return &it->second;
  return absl::NotFoundError(absl::StrCat("[Safetensors] '", path(), "' has no tensor '", name,
                                          "' (it has ", header_.tensors.size(), " others)"));
}

const char* SafetensorsFile::DataOf(const SafetensorsInfo& info) const {
  return file_->bytes().data() + header_.data_begin + info.begin;
}

absl::Status SafetensorsFile::Explain(const absl::Status& status, absl::string_view name) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("[Safetensors] '", name, "' of '", path(),
                                                  "': ", std::string(status.message())));
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<DurableFileWriter> file,
                                     std::vector<TensorSpec> specs)
    : file_(std::move(file)), specs_(std::move(specs)) {
  SkipEmpty();
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<TensorSpec> specs,
    const SafetensorsWriterOptions& options) {
  if (options.sort) SortForSafetensors(specs);
  MF_ASSIGN_OR_RETURN(std::string header, FormatSafetensorsHeader(specs, options.metadata));
  MF_ASSIGN_OR_RETURN(std::unique_ptr<DurableFileWriter> file, DurableFileWriter::Create(path));
  MF_RETURN_IF_ERROR(file->Append(header));
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(file), std::move(specs)));
}

absl::Status SafetensorsWriter::Append(absl::string_view name, const Tensor& tensor) {
  // Empty tensors need no turn: they have no bytes.
  if (tensor.numel() == 0) return absl::OkStatus();
  MF_RETURN_IF_ERROR(Expect(name));
  const TensorSpec& spec = specs_[next_];
  if (tensor.shape() != Shape(spec.shape)) {
    return absl::InvalidArgumentError(absl::StrCat("[Safetensors] '", name, "' was announced to '",
                                                   file_->path(), "' as ", ShapeText(spec.shape),
                                                   " and comes as ", tensor.shape().ToString()));
  }
  return WriteElements(tensor, spec.dtype, [this, name](absl::Span<const char> piece) {
    return AppendBytes(name, piece);
  });
}

absl::Status SafetensorsWriter::AppendBytes(absl::string_view name, absl::Span<const char> bytes) {
  if (bytes.empty()) return absl::OkStatus();
  MF_RETURN_IF_ERROR(Expect(name));
  if (static_cast<int64_t>(bytes.size()) > missing_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat("[Safetensors] '", name, "' was announced to '",
                                                   file_->path(), "' with ", missing_bytes_,
                                                   " more bytes and gets ", bytes.size()));
  }
  MF_RETURN_IF_ERROR(file_->Append(bytes));
  missing_bytes_ -= bytes.size();
  if (missing_bytes_ == 0) {
    ++next_;
    SkipEmpty();
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Close() {
  if (next_ < specs_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("[Safetensors] '", file_->path(), "' is closed ", missing_bytes_,
                     " bytes before the end of '", specs_[next_].name, "'"));
  }
  return file_->Close();
}

absl::Status SafetensorsWriter::Expect(absl::string_view name) const {
  if (next_ < specs_.size() && specs_[next_].name == name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "[Safetensors] '", name, "' is appended to '", file_->path(), "' where ",
      next_ < specs_.size() ? absl::StrCat("'", specs_[next_].name, "'") : "the end", " is due"));
}

void SafetensorsWriter::SkipEmpty() {
  for (; next_ < specs_.size(); ++next_) {
    // Sizes were checked when the header was made.
    missing_bytes_ = TensorBytes(specs_[next_].dtype, specs_[next_].shape).value();
    if (missing_bytes_ > 0) return;
  }
}

absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedTensor> tensors,
                              const SafetensorsWriterOptions& options) {
  std::vector<TensorSpec> specs;
  std::map<std::string, const Tensor*> by_name;
  for (const NamedTensor& entry : tensors) {
    specs.push_back(SpecOf(entry.name, entry.tensor));
    by_name[entry.name] = &entry.tensor;
  }
  MF_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsWriter> writer,
                      SafetensorsWriter::Create(path, std::move(specs), options));
  for (const TensorSpec& spec : writer->order()) {
    MF_RETURN_IF_ERROR(writer->Append(spec.name, *by_name.at(spec.name)));
  }
  return writer->Close();
}

TensorSpec SpecOf(absl::string_view name, const Tensor& tensor) {
  absl::Span<const int64_t> dims = tensor.shape().dims();
  return {std::string(name), FileDTypeOf(tensor.dtype()), {dims.begin(), dims.end()}};
}

}  // namespace meshfold
