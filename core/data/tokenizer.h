// Text to token ids and back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace meshfold {

// Files of ready-made tokens need none; text corpora and `generate` do. Stateless: thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids are in [0, vocab_size()).
  virtual int64_t vocab_size() const = 0;
  // The id that ends a document, if the vocabulary has one.
  virtual std::optional<int32_t> eos() const = 0;
  // No separator is added.
  virtual std::vector<int32_t> Encode(absl::string_view text) const = 0;
  // OutOfRange for an id outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const = 0;
};

// One id a byte: 256 ids and no training, any text round-trips. Byte 0, which text does not hold,
// is the document separator, so that the vocabulary stays a power of two. A NUL in a file is an
// ordinary token all the same: borders and masks follow positions, never ids.
class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int64_t kVocabSize = 256;
  static constexpr int32_t kEos = 0;

  int64_t vocab_size() const override { return kVocabSize; }
  std::optional<int32_t> eos() const override { return kEos; }
  std::vector<int32_t> Encode(absl::string_view text) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids) const override;
};

}  // namespace meshfold
