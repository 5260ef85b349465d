// One safetensors file: reading through a mapping, writing as a stream.
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
#include "core/io/file.h"
#include "core/io/safetensors_header.h"
#include "core/tensor/tensor.h"

namespace meshfold {

// A file, checked whole when it is opened (see ParseSafetensorsHeader) and read page by page as
// tensors are asked for. Immutable: safe to use from many threads. Errors name the file and, where
// there is one, the tensor; NotFound for an unknown name.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::shared_ptr<const SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  // All tensors by name, and the file's "__metadata__".
  const std::map<std::string, SafetensorsInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  std::vector<std::string> names() const;
  bool Has(absl::string_view name) const;
  absl::StatusOr<SafetensorsInfo> info(absl::string_view name) const;

  // Copies a tensor into `dst` (host memory, any row pitch) and converts to its dtype as
  // ReadElements does. InvalidArgument unless the shapes are equal.
  absl::Status Read(absl::string_view name, const Tensor& dst) const;
  // Elements [begin, begin + dst.numel()) of the tensor's row-major order, into `dst` of any shape.
  absl::Status ReadRange(absl::string_view name, int64_t begin, const Tensor& dst) const;
  // A contiguous copy with the type that TensorTypeOf gives, in the current context's allocator or
  // the given one; ResourceExhausted when that is full.
  absl::StatusOr<Tensor> Read(absl::string_view name) const;
  absl::StatusOr<Tensor> Read(absl::string_view name, Allocator& allocator) const;
  // The tensor's bytes in the mapping: valid while this object lives, not aligned, no copy.
  absl::StatusOr<absl::Span<const char>> bytes(absl::string_view name) const;

 private:
  SafetensorsFile(std::shared_ptr<const MappedFile> file, SafetensorsHeader header);
  absl::StatusOr<const SafetensorsInfo*> Find(absl::string_view name) const;
  const char* DataOf(const SafetensorsInfo& info) const;
  absl::Status Explain(const absl::Status& status, absl::string_view name) const;

  std::shared_ptr<const MappedFile> file_;
  SafetensorsHeader header_;
};

struct SafetensorsWriterOptions {
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  // what Hugging Face expects
  bool sort = true;  // as Hugging Face sorts; else tensors stand in the order given
};

// Writes one file, tensor by tensor, so that no two need be in memory at once. The file appears
// when Close succeeds (see DurableFileWriter). With the default options the bytes equal those of
// Hugging Face's writer. Single-threaded.
class SafetensorsWriter {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<TensorSpec> specs,
      const SafetensorsWriterOptions& options = {});

  // The tensors in the order in which they must be appended.
  const std::vector<TensorSpec>& order() const { return specs_; }

  // Appends the next tensor, converted to the type of its spec. InvalidArgument when `name` is not
  // the next in order or the shape is not the spec's.
  absl::Status Append(absl::string_view name, const Tensor& tensor);
  // Appends the next bytes of the next tensor, in as many calls as it takes.
  absl::Status AppendBytes(absl::string_view name, absl::Span<const char> bytes);
  // FailedPrecondition when tensors are missing.
  absl::Status Close();

 private:
  SafetensorsWriter(std::unique_ptr<DurableFileWriter> file, std::vector<TensorSpec> specs);
  absl::Status Expect(absl::string_view name) const;
  void SkipEmpty();

  std::unique_ptr<DurableFileWriter> file_;
  std::vector<TensorSpec> specs_;
  size_t next_ = 0;            // the tensor that is due
  int64_t missing_bytes_ = 0;  // what is still due of it
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Writes `tensors` (host memory) with their own types.
absl::Status WriteSafetensors(const std::string& path, absl::Span<const NamedTensor> tensors,
                              const SafetensorsWriterOptions& options = {});

// What the file says of a tensor of ours.
TensorSpec SpecOf(absl::string_view name, const Tensor& tensor);

}  // namespace meshfold
