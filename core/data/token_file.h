// Ready-made tokens: a tensor of a safetensors file, or a NumPy array.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/data/dataset.h"
#include "core/data/token_type.h"
#include "core/io/file.h"

namespace meshfold {

// Where the array of a .npy file lies.
struct NpyHeader {
  TokenType type = TokenType::kI32;
  std::vector<int64_t> shape;
  int64_t data_begin = 0;  // bytes from the start of the file
};

// Reads the header of a .npy file of integers; the data must end with the file. InvalidArgument,
// led by `path`, for anything else: other types and byte orders, Fortran order of more than one
// dim, sizes that disagree.
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::Span<const char> file, absl::string_view path);

// Reads through a mapping. From a safetensors file: the tensor "input_ids", else "tokens", of type
// U8, U16, I32, U32 or I64; a .npy file: the array. Shape [N, L] is N documents of L tokens; shape
// [T] is one document, or, where the safetensors file has "cu_seqlens" I64 [N+1] (first 0, last T,
// ascending), N documents.
class TokenFile : public Dataset {
 public:
  static absl::StatusOr<std::shared_ptr<const TokenFile>> Open(const std::string& path);

  int64_t num_documents() const override { return static_cast<int64_t>(borders_.size()) - 1; }
  int64_t document_length(int64_t i) const override { return borders_[i + 1] - borders_[i]; }
  absl::Status Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const override;
  int64_t vocab_bound() const override { return TokenBound(type_); }
  int64_t vocab_size() const override { return vocab_size_; }
  const std::string& name() const override { return path_; }

 private:
  TokenFile() = default;
  absl::Status OpenNpy();
  absl::Status OpenSafetensors();
  absl::Status SetShape(absl::Span<const int64_t> shape);
  absl::Status Refuse(absl::string_view reason) const;

  std::string path_;
  std::shared_ptr<const void> owner_;  // keeps the mapping
  const char* data_ = nullptr;
  TokenType type_ = TokenType::kI32;
  int64_t vocab_size_ = 0;
  std::vector<int64_t> borders_;  // documents in tokens, from 0
};

}  // namespace meshfold
