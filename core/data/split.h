// Which parts of a dataset train and which validate.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/dataset.h"

namespace meshfold {

// Tokens [begin, begin + length) of a document, taken as a document of its own.
struct DocumentSpan {
  int64_t document = 0;
  int64_t begin = 0;
  int64_t length = 0;
};

enum class SplitBy {
  kDocument,  // whole documents validate
  kBlock,     // blocks of `block_length` tokens validate: for corpora of few long documents
};

struct SplitOptions {
  double validation_fraction = 0;  // of the documents or blocks, in [0, 1)
  SplitBy by = SplitBy::kDocument;
  int64_t block_length = 0;  // tokens, for kBlock
  uint64_t seed = 0;
};

// Both parts in document order, without empty documents. What trains is cut where a block was taken
// out, so no token is in both parts.
struct DocumentSplit {
  std::vector<DocumentSpan> train, validation;
};

// A pure function of the document lengths and the options: the same on every process, in every
// epoch. A fraction above 0 gives at least one unit to each part; InvalidArgument when there are
// not two, or an option is out of range.
absl::StatusOr<DocumentSplit> SplitDataset(const Dataset& dataset, const SplitOptions& options);

// Sum of the spans' lengths.
int64_t NumTokens(const std::vector<DocumentSpan>& spans);

}  // namespace meshfold
