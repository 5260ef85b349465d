// The corpus as training sees it: documents of token ids, read at random.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshfold {

// A fixed sequence of documents. Document and token order never change while the object lives, and
// are the same on every process that opens the same files. All methods are safe to call from many
// threads. A document ends with its separator token if its source wrote one: nothing is added here.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual int64_t num_documents() const = 0;
  // Tokens of document `i` in [0, num_documents()); may be 0.
  virtual int64_t document_length(int64_t i) const = 0;
  // Writes tokens [begin, begin + count) of document `i` to `out`. The range must lie in the
  // document (a check failure otherwise). OutOfRange, naming dataset, document and position, for a
  // stored id that is negative or not below vocab_bound().
  virtual absl::Status Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const = 0;
  // No id is as large as this: what the storage can hold, or the vocabulary where it is known.
  virtual int64_t vocab_bound() const = 0;
  // Size of the vocabulary that the tokens were made with; 0 where nothing says it.
  virtual int64_t vocab_size() const { return 0; }
  // Where it comes from, for messages: a path or pattern.
  virtual const std::string& name() const = 0;
};

// Sum of all document lengths.
int64_t NumTokens(const Dataset& dataset);

// All tokens of one document.
absl::StatusOr<std::vector<int32_t>> ReadDocument(const Dataset& dataset, int64_t i);

// Opens what `source` names: "python:stdlib" (see FindPythonStdlib), a ".safetensors" or ".npy"
// file of tokens, the prefix of an ".idx" and ".bin" pair (or either file), else text files by a
// shell pattern. NotFound, saying what was tried, when there is no such thing.
absl::StatusOr<std::shared_ptr<const Dataset>> OpenDataset(const std::string& source);

}  // namespace meshfold
