#include "core/io/safetensors_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

using nlohmann::json;

constexpr absl::string_view kMetadataKey = "__metadata__";
constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxRank = 64;

// A name as a message shows it: a hostile one may be as long as the header.
std::string Shown(absl::string_view name) {
  return name.size() <= 80 ? std::string(name) : absl::StrCat(name.substr(0, 80), "...");
}

// Takes the JSON events of a header and fills a SafetensorsHeader. There is no tree of values, so a
// hostile header costs memory in proportion to its length only, and a repeated key is seen.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}
  // The first departure from the grammar.
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return Fail(absl::StrCat("has the negative number ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return Fail(absl::StrCat("has the number ", text.substr(0, 32), " where an integer belongs"));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool number_unsigned(number_unsigned_t value) override;
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is not valid JSON at byte ", position));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(std::string error) {
    if (error_.empty()) error_ = std::move(error);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    return Fail(absl::StrCat("has ", what, " in a wrong place, at '", Shown(name_), "' '",
                             Shown(field_), "'"));
  }

  SafetensorsHeader& header_;
  State state_ = State::kStart;
  std::string name_, field_;  // the key last seen on either level
  SafetensorsInfo info_;
  std::vector<int64_t> offsets_;
  std::set<std::string> fields_;
  bool has_metadata_ = false;
  std::string error_;
};

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (state_ != State::kShape && state_ != State::kOffsets) return Unexpected("a number");
  if (value > static_cast<number_unsigned_t>(INT64_MAX)) {
    return Fail(absl::StrCat("gives '", Shown(name_), "' the number ", value, " in ", field_));
  }
  std::vector<int64_t>& list = state_ == State::kShape ? info_.shape : offsets_;
  if (list.size() == kMaxRank) {
    return Fail(
        absl::StrCat("gives '", Shown(name_), "' more than ", kMaxRank, " numbers in ", field_));
  }
  list.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(string_t& value) {
  if (state_ == State::kMetadata) {
    if (header_.metadata.emplace(field_, value).second) return true;
    return Fail(absl::StrCat("repeats the metadata key '", Shown(field_), "'"));
  }
  if (state_ != State::kTensor || field_ != "dtype") return Unexpected("a string");
  absl::StatusOr<FileDType> dtype = ParseFileDType(value);
  if (!dtype.ok()) {
    return Fail(
        absl::StrCat("gives '", Shown(name_), "' the ", std::string(dtype.status().message())));
  }
  info_.dtype = *dtype;
  return true;
}

bool HeaderReader::start_object(std::size_t) {
  if (state_ == State::kStart) {
    state_ = State::kTop;
    return true;
  }
  if (state_ != State::kTop) return Unexpected("an object");
  field_.clear();
  fields_.clear();
  if (name_ == kMetadataKey) {
    if (std::exchange(has_metadata_, true)) return Fail("repeats '__metadata__'");
    state_ = State::kMetadata;
    return true;
  }
  info_ = SafetensorsInfo();
  offsets_.clear();
  state_ = State::kTensor;
  return true;
}

bool HeaderReader::key(string_t& name) {
  if (state_ == State::kTop) {
    name_ = name;
    return true;
  }
  field_ = name;
  if (state_ == State::kMetadata) return true;
  if (name != "dtype" && name != "shape" && name != "data_offsets") {
    return Fail(absl::StrCat("gives '", Shown(name_), "' the unknown field '", Shown(name), "'"));
  }
  if (fields_.insert(name).second) return true;
  return Fail(absl::StrCat("repeats ", name, " of '", Shown(name_), "'"));
}

bool HeaderReader::end_object() {
  if (state_ == State::kTensor) {
    if (fields_.size() != 3 || offsets_.size() != 2) {
      return Fail(absl::StrCat("describes '", Shown(name_),
                               "' without one each of dtype, shape and two data_offsets"));
    }
    info_.begin = offsets_[0];
    info_.end = offsets_[1];
    if (!header_.tensors.emplace(name_, std::move(info_)).second) {
      return Fail(absl::StrCat("repeats the tensor '", Shown(name_), "'"));
    }
  }
  state_ = state_ == State::kTop ? State::kEnd : State::kTop;
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (state_ != State::kTensor || field_ == "dtype" || field_.empty()) {
    return Unexpected("an array");
  }
  state_ = field_ == "shape" ? State::kShape : State::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  state_ = State::kTensor;
  return true;
}

// Sizes agree with offsets, and the tensors cover [0, data_bytes) once.
absl::Status CheckOffsets(const SafetensorsHeader& header, int64_t data_bytes) {
  using Entry = std::pair<const std::string, SafetensorsInfo>;
  std::vector<const Entry*> entries;
  entries.reserve(header.tensors.size());
  for (const Entry& entry : header.tensors) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  int64_t at = 0;
  for (const Entry* entry : entries) {
    const SafetensorsInfo& info = entry->second;
    auto place = [&] {
      return absl::StrCat("'", Shown(entry->first), "' at bytes [", info.begin, ", ", info.end,
                          ") of ", data_bytes);
    };
    if (info.begin > info.end || info.end > data_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("puts ", place()));
    }
    MF_ASSIGN_OR_RETURN(int64_t bytes, TensorBytes(info.dtype, info.shape));
    if (bytes != info.end - info.begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("puts ", place(), ", but ", FileDTypeName(info.dtype), " [",
                       absl::StrJoin(info.shape, ", "), "] is ", bytes, " bytes"));
    }
    if (info.begin != at) {
      return absl::InvalidArgumentError(
          absl::StrCat(info.begin > at ? "leaves a hole before " : "lets tensors overlap: puts ",
                       place(), ", the one before it ends at ", at));
    }
    at = info.end;
  }
  if (at != data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("describes ", at, " bytes of data, the file has ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status ParseJson(absl::Span<const char> text, SafetensorsHeader& header) {
  if (text.empty() || text[0] != '{') {
    return absl::InvalidArgumentError("does not start with '{'");
  }
  HeaderReader reader(header);
  try {
    if (json::sax_parse(text.begin(), text.end(), &reader)) return absl::OkStatus();
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("is not valid JSON: ", e.what()));
  }
  return absl::InvalidArgumentError(reader.error());
}

absl::StatusOr<std::string> Quote(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Safetensors] the name '", text, "' is not UTF-8"));
  }
}

}  // namespace

absl::StatusOr<int64_t> TensorBytes(FileDType dtype, absl::Span<const int64_t> shape) {
  int64_t bytes = SizeOf(dtype);
  bool overflow = false, empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("gives a tensor the negative extent ", extent));
    }
    empty = empty || extent == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  // Stricter than needed where a later extent is 0: readers multiply from the left, too.
  if (overflow) {
    return absl::InvalidArgumentError(absl::StrCat("describes a tensor too large to address: [",
                                                   absl::StrJoin(shape, ", "), "]"));
  }
  return empty ? 0 : bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::Span<const char> file,
                                                         int64_t file_bytes,
                                                         absl::string_view path) {
  auto refuse = [path](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("[Safetensors] '", path, "' ", reason));
  };
  if (file_bytes < kLengthBytes || file.size() < kLengthBytes) {
    return refuse(absl::StrCat("is ", file_bytes, " bytes long, too short for a header"));
  }
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return refuse(absl::StrCat("announces a header of ", length, " bytes, more than ",
                               kMaxSafetensorsHeaderBytes));
  }
  int64_t data_begin = kLengthBytes + static_cast<int64_t>(length);
  if (data_begin > file_bytes || data_begin > static_cast<int64_t>(file.size())) {
    return refuse(absl::StrCat("announces a header of ", length, " bytes, but is ", file_bytes,
                               " bytes long"));
  }
  SafetensorsHeader header;
  header.data_begin = data_begin;
  absl::Status status = ParseJson(file.subspan(kLengthBytes, length), header);
  if (!status.ok())
    return refuse(absl::StrCat("has a header that ", std::string(status.message())));
  status = CheckOffsets(header, file_bytes - data_begin);
  if (!status.ok())
    return refuse(absl::StrCat("has a header that ", std::string(status.message())));
  return header;
}

void SortForSafetensors(std::vector<TensorSpec>& specs) {
  std::stable_sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    if (a.dtype != b.dtype) return a.dtype > b.dtype;
    return a.name < b.name;
  });
}

absl::StatusOr<std::string> FormatSafetensorsHeader(
    absl::Span<const TensorSpec> specs, const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> items;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) {
      MF_ASSIGN_OR_RETURN(std::string quoted_key, Quote(key));
      MF_ASSIGN_OR_RETURN(std::string quoted_value, Quote(value));
      pairs.push_back(absl::StrCat(quoted_key, ":", quoted_value));
    }
    items.push_back(absl::StrCat("\"", kMetadataKey, "\":{", absl::StrJoin(pairs, ","), "}"));
  }
  std::set<absl::string_view> names = {kMetadataKey};
  int64_t at = 0;
  for (const TensorSpec& spec : specs) {
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Safetensors] the name '", spec.name, "' is given twice or reserved"));
    }
    MF_ASSIGN_OR_RETURN(int64_t bytes, TensorBytes(spec.dtype, spec.shape));
    int64_t begin = at;
    if (__builtin_add_overflow(at, bytes, &at)) {
      return absl::InvalidArgumentError("[Safetensors] the file would be too large to address");
    }
    MF_ASSIGN_OR_RETURN(std::string quoted, Quote(spec.name));
    items.push_back(absl::StrCat(quoted, ":{\"dtype\":\"", FileDTypeName(spec.dtype),
                                 "\",\"shape\":[", absl::StrJoin(spec.shape, ","),
                                 "],\"data_offsets\":[", begin, ",", at, "]}"));
  }
  std::string text = absl::StrCat("{", absl::StrJoin(items, ","), "}");
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<int64_t>(text.size()) > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("[Safetensors] the header would be ",
                                                   text.size(), " bytes long, more than ",
                                                   kMaxSafetensorsHeaderBytes));
  }
  uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), kLengthBytes);
  return bytes + text;
}

}  // namespace meshfold
