#include "core/data/token_meta.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/json.h"

namespace meshfold {

absl::StatusOr<int64_t> ReadVocabSize(const std::string& prefix) {
  const std::string path = prefix + ".meta.json";
  absl::StatusOr<nlohmann::json> meta = ReadJsonFile(path);
  if (absl::IsNotFound(meta.status())) return 0;
  MF_RETURN_IF_ERROR(meta.status());
  if (!meta->is_object() || !meta->contains("vocab_size") ||
      !(*meta)["vocab_size"].is_number_integer() || (*meta)["vocab_size"].get<int64_t>() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": \"vocab_size\" is not a whole number above 0"));
  }
  return (*meta)["vocab_size"].get<int64_t>();
}

}  // namespace meshfold
