#include "core/data/split.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

// Documents, or blocks of them, in order.
std::vector<DocumentSpan> UnitsOf(const Dataset& dataset, const SplitOptions& options) {
  bool blocks = options.by == SplitBy::kBlock && options.validation_fraction > 0;
  std::vector<DocumentSpan> units;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) {
    int64_t length = dataset.document_length(i);
    int64_t step = blocks ? options.block_length : std::max<int64_t>(length, 1);
    for (int64_t begin = 0; begin < length; begin += step) {
      units.push_back({i, begin, std::min(step, length - begin)});
    }
  }
  return units;
}

// Appends `unit`, joined to the last span where it continues it.
void Append(const DocumentSpan& unit, std::vector<DocumentSpan>& spans) {
  if (!spans.empty() && spans.back().document == unit.document &&
      spans.back().begin + spans.back().length == unit.begin) {
    spans.back().length += unit.length;
  } else {
    spans.push_back(unit);
  }
}

}  // namespace

absl::StatusOr<DocumentSplit> SplitDataset(const Dataset& dataset, const SplitOptions& options) {
  double fraction = options.validation_fraction;
  if (!(fraction >= 0 && fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Split] validation fraction ", fraction, " out of range [0, 1)"));
  }
  if (options.by == SplitBy::kBlock && fraction > 0 && options.block_length < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Split] block length ", options.block_length, " is not positive"));
  }
  std::vector<DocumentSpan> units = UnitsOf(dataset, options);
  DocumentSplit split;
  if (fraction == 0) {
    split.train = std::move(units);
    return split;
  }
  int64_t count = static_cast<int64_t>(units.size());
  if (count < 2) {
    bool by_document = options.by == SplitBy::kDocument;
    return absl::InvalidArgumentError(absl::StrCat(
        "[Split] '", dataset.name(), "' has ", count, by_document ? " documents" : " blocks",
        ", too few to keep some for validation",
        by_document ? "; split it by block (data.validation_by) instead" : ""));
  }
  int64_t held_out = std::clamp<int64_t>(std::llround(fraction * count), 1, count - 1);
  RngKey key = MakeRngKey(options.seed, "split/validation");
  for (int64_t i = 0; i < count; ++i) {
    bool validates = static_cast<int64_t>(PermuteIndex(key, i, count)) < held_out;
    Append(units[i], validates ? split.validation : split.train);
  }
  return split;
}

int64_t NumTokens(const std::vector<DocumentSpan>& spans) {
  int64_t total = 0;
  for (const DocumentSpan& span : spans) total += span.length;
  return total;
}

}  // namespace meshfold
