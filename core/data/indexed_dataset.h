// Megatron's token files: PREFIX.bin, the raw tokens, and PREFIX.idx, where each sequence lies.
//
// The .idx, little-endian: 9 bytes "MMIDIDX\0\0", u64 version 1, u8 type code, u64 N, u64 D,
// i32[N] sequence lengths in tokens, i64[N] byte offsets into the .bin, i64[D] document borders as
// sequence numbers (first 0, last N), and for multimodal data i8[N] modes.
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

// An .idx that was checked against the size of its .bin. Views into the bytes it was made from,
// which are not aligned.
class TokenIndex {
 public:
  // InvalidArgument, led by `path`, for every departure from the format: lengths that do not fit
  // the file, negative lengths, sequences outside the .bin, document borders out of order.
  static absl::StatusOr<TokenIndex> Parse(absl::Span<const char> idx, int64_t bin_bytes,
                                          absl::string_view path);

  TokenType type() const { return type_; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t num_documents() const { return num_borders_ - 1; }
  int64_t sequence_length(int64_t sequence) const;
  // Bytes from the start of the .bin.
  int64_t sequence_offset(int64_t sequence) const;
  // First sequence of a document; for num_documents(), the number of sequences.
  int64_t document_begin(int64_t document) const;

 private:
  TokenIndex() = default;
  absl::Status Check(int64_t bin_bytes) const;

  TokenType type_ = TokenType::kU16;
  int64_t num_sequences_ = 0, num_borders_ = 0;
  const char* lengths_ = nullptr;
  const char* offsets_ = nullptr;
  const char* borders_ = nullptr;
};

// Reads a pair through mappings. A document is the concatenation of its sequences.
class IndexedDataset : public Dataset {
 public:
  static absl::StatusOr<std::shared_ptr<const IndexedDataset>> Open(const std::string& prefix);

  int64_t num_documents() const override { return index_.num_documents(); }
  int64_t document_length(int64_t i) const override;
  absl::Status Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const override;
  int64_t vocab_bound() const override;
  int64_t vocab_size() const override { return vocab_size_; }
  const std::string& name() const override { return prefix_; }
  const TokenIndex& index() const { return index_; }

 private:
  IndexedDataset(std::string prefix, std::shared_ptr<const MappedFile> idx,
                 std::shared_ptr<const MappedFile> bin, TokenIndex index, int64_t vocab_size);

  std::string prefix_;
  std::shared_ptr<const MappedFile> idx_, bin_;
  TokenIndex index_;
  int64_t vocab_size_;
};

// Writes a pair, byte for byte as Megatron does, one sequence a document. Both files appear when
// Close succeeds, the .idx last; an older .idx goes first, so that none describes a foreign .bin.
// Single-threaded.
class IndexedDatasetWriter {
 public:
  // The type is the one Megatron takes: u16 for vocabularies below 65500, else i32.
  static absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> Create(const std::string& prefix,
                                                                      int64_t vocab_size);

  // OutOfRange, naming document, position and id, for an id outside [0, vocab_size): nothing wraps.
  absl::Status AddDocument(absl::Span<const int32_t> tokens);
  absl::Status Close();

 private:
  IndexedDatasetWriter(std::string prefix, int64_t vocab_size,
                       std::unique_ptr<DurableFileWriter> bin);

  std::string prefix_;
  int64_t vocab_size_;
  TokenType type_;
  std::unique_ptr<DurableFileWriter> bin_;
  std::vector<int32_t> lengths_;
};

}  // namespace meshfold
