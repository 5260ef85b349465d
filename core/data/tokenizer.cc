#include "core/data/tokenizer.h"

#include "absl/strings/str_cat.h"

namespace meshfold {

std::vector<int32_t> ByteTokenizer::Encode(absl::string_view text) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size());
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

absl::StatusOr<std::string> ByteTokenizer::Decode(absl::Span<const int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= kVocabSize) {
      return absl::OutOfRangeError(
          absl::StrCat("[ByteTokenizer] id ", ids[i], " out of range [0, 256) at position ", i));
    }
    text += static_cast<char>(ids[i]);
  }
  return text;
}

}  // namespace meshfold
