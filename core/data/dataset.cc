#include "core/data/dataset.h"

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "core/data/indexed_dataset.h"
#include "core/data/text_corpus.h"
#include "core/data/token_file.h"
#include "core/io/file.h"

namespace meshfold {

int64_t NumTokens(const Dataset& dataset) {
  int64_t total = 0;
  for (int64_t i = 0; i < dataset.num_documents(); ++i) total += dataset.document_length(i);
  return total;
}

absl::StatusOr<std::vector<int32_t>> ReadDocument(const Dataset& dataset, int64_t i) {
  std::vector<int32_t> tokens(dataset.document_length(i));
  MF_RETURN_IF_ERROR(dataset.Read(i, 0, tokens.size(), tokens.data()));
  return tokens;
}

absl::StatusOr<std::shared_ptr<const Dataset>> OpenDataset(const std::string& source) {
  if (absl::EndsWith(source, ".safetensors") || absl::EndsWith(source, ".npy")) {
    return TokenFile::Open(source);
  }
  absl::string_view prefix = source;
  if (!absl::ConsumeSuffix(&prefix, ".idx")) absl::ConsumeSuffix(&prefix, ".bin");
  if (prefix.size() < source.size() || FileExists(source + ".idx")) {
    return IndexedDataset::Open(std::string(prefix));
  }
  return TextCorpus::Open({source});
}

}  // namespace meshfold
