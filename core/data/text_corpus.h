// Text files as a dataset of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/data/dataset.h"

namespace meshfold {

// The source that stands for the sources of Python's standard library: a corpus of about 11 MB of
// English and code that nearly every machine has.
inline constexpr char kPythonStdlib[] = "python:stdlib";

// Files of text, one document a file, one token a byte (ByteTokenizer), each ended by the separator
// id 0. Names that end in .gz or .dz are decompressed. The text is held in memory: for corpora of
// many gigabytes use tools/prepare.py and IndexedDataset.
class TextCorpus : public Dataset {
 public:
  // Reads all regular files that match `patterns` (see Glob) or belong to kPythonStdlib, in the
  // byte order of their paths inside each pattern; a file that matches twice counts once. NotFound
  // when nothing matches, ResourceExhausted when the text is longer than `max_bytes`.
  static absl::StatusOr<std::shared_ptr<const TextCorpus>> Open(
      const std::vector<std::string>& patterns, int64_t max_bytes = int64_t{1} << 34);

  int64_t num_documents() const override { return static_cast<int64_t>(ends_.size()); }
  int64_t document_length(int64_t i) const override { return ends_[i] - BeginOf(i); }
  absl::Status Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const override;
  int64_t vocab_bound() const override { return 256; }
  int64_t vocab_size() const override { return 256; }
  const std::string& name() const override { return name_; }

 private:
  TextCorpus() = default;
  int64_t BeginOf(int64_t i) const { return i == 0 ? 0 : ends_[i - 1]; }

  std::string name_;
  std::string text_;           // all documents, separators included
  std::vector<int64_t> ends_;  // offset behind each document
};

// The .py files of a Python 3 standard library, without tests and installed packages, in byte
// order: beside the python3 on the PATH, else under /usr/lib or /usr/local/lib, newest first.
// NotFound, naming the places, when there is none.
absl::StatusOr<std::vector<std::string>> FindPythonStdlib();

}  // namespace meshfold
