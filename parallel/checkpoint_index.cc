#include "parallel/checkpoint_index.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/io/json.h"

namespace meshfold::parallel {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "meshfold-checkpoint";
constexpr int64_t kVersion = 1;

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(what); }

// The same error, led by where it is.
absl::Status Within(absl::string_view place, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(place, " ", status.message()));
}

// Member `key` of an object; its type is up to the caller.
absl::StatusOr<const Json*> Member(const Json& json, const char* key) {
  if (!json.is_object()) return Bad("is not an object");
  auto it = json.find(key);
  if (it == json.end()) return Bad(absl::StrCat("has no member '", key, "'"));
  return &*it;
}

// No conversions: 1.5, true and 2^63 are no integers.
absl::StatusOr<int64_t> ToInteger(const Json& json, absl::string_view key) {
  bool fits = json.is_number_integer() &&
              (!json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits) return Bad(absl::StrCat("has a '", key, "' that is no 64-bit integer"));
  return json.get<int64_t>();
}

absl::StatusOr<int64_t> Integer(const Json& json, const char* key) {
  MF_ASSIGN_OR_RETURN(const Json* member, Member(json, key));
  return ToInteger(*member, key);
}

absl::StatusOr<std::string> Text(const Json& json, const char* key) {
  MF_ASSIGN_OR_RETURN(const Json* member, Member(json, key));
  if (!member->is_string()) return Bad(absl::StrCat("has a '", key, "' that is no text"));
  return member->get<std::string>();
}

absl::StatusOr<std::vector<int64_t>> Integers(const Json& json, const char* key) {
  MF_ASSIGN_OR_RETURN(const Json* member, Member(json, key));
  if (!member->is_array()) return Bad(absl::StrCat("has a '", key, "' that is no list"));
  std::vector<int64_t> values;
  for (const Json& item : *member) {
    MF_ASSIGN_OR_RETURN(int64_t value, ToInteger(item, key));
    values.push_back(value);
  }
  return values;
}

absl::StatusOr<std::string> Checksum(const Json& json, const char* key) {
  MF_ASSIGN_OR_RETURN(std::string text, Text(json, key));
  bool valid = text.size() == 16 && std::all_of(text.begin(), text.end(), [](char c) {
                 return absl::ascii_isxdigit(static_cast<unsigned char>(c)) &&
                        !absl::ascii_isupper(static_cast<unsigned char>(c));
               });
  if (!valid) return Bad(absl::StrCat("has a '", key, "' that is not 16 hex digits"));
  return text;
}

// A name that stays inside the checkpoint's directory.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

absl::StatusOr<CheckpointPiece> ParsePiece(const Json& json) {
  CheckpointPiece piece;
  MF_ASSIGN_OR_RETURN(piece.file, Text(json, "file"));
  MF_ASSIGN_OR_RETURN(piece.key, Text(json, "key"));
  MF_ASSIGN_OR_RETURN(piece.start, Integers(json, "start"));
  MF_ASSIGN_OR_RETURN(piece.extent, Integers(json, "extent"));
  MF_ASSIGN_OR_RETURN(std::vector<int64_t> flat, Integers(json, "flat"));
  MF_ASSIGN_OR_RETURN(piece.checksum, Checksum(json, "xxh3"));
  if (flat.size() != 2) {
    return Bad(absl::StrCat("has a 'flat' of ", flat.size(), " numbers, 2 are wanted"));
  }
  piece.flat_begin = flat[0];
  piece.flat_end = flat[1];
  if (!IsPlainName(piece.file)) {
    return Bad(absl::StrCat("has a 'file' that leaves the checkpoint: '", piece.file, "'"));
  }
  return piece;
}

// `taken` holds the (file, key) pairs of all pieces so far.
absl::StatusOr<CheckpointTensorInfo> ParseTensor(
    const Json& json, std::set<std::pair<std::string, std::string>>& taken) {
  CheckpointTensorInfo info;
  MF_ASSIGN_OR_RETURN(std::string dtype, Text(json, "dtype"));
  MF_ASSIGN_OR_RETURN(info.dtype, ParseDType(dtype));
  MF_ASSIGN_OR_RETURN(std::vector<int64_t> shape, Integers(json, "shape"));
  info.shape = Shape(shape);
  MF_ASSIGN_OR_RETURN(const Json* pieces, Member(json, "pieces"));
  if (!pieces->is_array()) return Bad("has 'pieces' that are no list");
  for (const Json& item : *pieces) {
    absl::StatusOr<CheckpointPiece> piece = ParsePiece(item);
    if (!piece.ok()) {
      return Within(absl::StrCat("piece ", info.pieces.size()), piece.status());
    }
    if (!taken.emplace(piece->file, piece->key).second) {
      return Bad(absl::StrCat("uses '", piece->key, "' of '", piece->file, "' a second time"));
    }
    info.pieces.push_back(*std::move(piece));
  }
  return info;
}

// The pieces need not be all there are.
absl::StatusOr<CheckpointTensors> ParseTable(const Json& json) {
  CheckpointTensors tensors;
  std::set<std::pair<std::string, std::string>> taken;
  for (const auto& [name, value] : json.items()) {
    absl::StatusOr<CheckpointTensorInfo> info = ParseTensor(value, taken);
    if (!info.ok()) return Within(absl::StrCat("tensor '", name, "'"), info.status());
    tensors.emplace(name, *std::move(info));
  }
  return tensors;
}

Json TableOf(const CheckpointTensors& tensors) {
  Json table = Json::object();
  for (const auto& [name, info] : tensors) {
    Json pieces = Json::array();
    for (const CheckpointPiece& piece : info.pieces) {
      pieces.push_back({{"file", piece.file},
                        {"key", piece.key},
                        {"start", piece.start},
                        {"extent", piece.extent},
                        {"flat", {piece.flat_begin, piece.flat_end}},
                        {"xxh3", piece.checksum}});
    }
    std::vector<int64_t> shape(info.shape.dims().begin(), info.shape.dims().end());
    table[name] = {{"dtype", DTypeName(info.dtype)}, {"shape", shape}, {"pieces", pieces}};
  }
  return table;
}

// An index that carries its own checksum must match it.
absl::Status CheckOwnChecksum(Json& json) {
  if (!json.contains("xxh3")) return absl::OkStatus();
  MF_ASSIGN_OR_RETURN(std::string wanted, Checksum(json, "xxh3"));
  json.erase("xxh3");
  std::string found = ChecksumOf(json.dump());
  if (found == wanted) return absl::OkStatus();
  return Bad(absl::StrCat("does not match its checksum (", found, ", it says ", wanted,
                          "); the file is damaged"));
}

absl::StatusOr<CheckpointIndex> ParseJsonIndex(Json json) {
  MF_ASSIGN_OR_RETURN(std::string format, Text(json, "format"));
  if (format != kFormat) return Bad("is not the index of a checkpoint");
  MF_ASSIGN_OR_RETURN(int64_t version, Integer(json, "version"));
  if (version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "is version ", version, " of the format; this program reads version ", kVersion));
  }
  MF_RETURN_IF_ERROR(CheckOwnChecksum(json));
  CheckpointIndex index;
  MF_ASSIGN_OR_RETURN(index.state.step, Integer(json, "step"));
  if (index.state.step < 0) return Bad(absl::StrCat("has the step ", index.state.step));
  if (json.contains("config_xxh3")) {
    MF_ASSIGN_OR_RETURN(index.config_checksum, Checksum(json, "config_xxh3"));
  }
  MF_ASSIGN_OR_RETURN(const Json* integers, Member(json, "integers"));
  MF_ASSIGN_OR_RETURN(const Json* tensors, Member(json, "tensors"));
  if (!integers->is_object() || !tensors->is_object()) {
    return Bad("has 'integers' or 'tensors' that are no object");
  }
  for (const auto& [name, value] : integers->items()) {
    MF_ASSIGN_OR_RETURN(index.state.integers[name], ToInteger(value, name));
  }
  MF_ASSIGN_OR_RETURN(index.tensors, ParseTable(*tensors));
  for (const auto& [name, info] : index.tensors) {
    absl::Status status = CheckTiling(info);
    if (!status.ok()) return Within(absl::StrCat("tensor '", name, "'"), status);
  }
  return index;
}

}  // namespace

std::string ChecksumOf(absl::string_view bytes) {
  return ChecksumText(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string ChecksumText(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

absl::StatusOr<std::string> FormatTensors(const CheckpointTensors& tensors) {
  try {
    return TableOf(tensors).dump();
  } catch (const Json::exception& error) {
    return Bad(absl::StrCat("[Checkpoint] cannot describe the tensors: ", error.what()));
  }
}

absl::StatusOr<CheckpointTensors> ParseTensors(absl::string_view text, absl::string_view source) {
  MF_ASSIGN_OR_RETURN(Json json, ParseJson(text, source));
  if (!json.is_object()) return Bad(absl::StrCat("[Checkpoint] ", source, " is no object"));
  absl::StatusOr<CheckpointTensors> tensors = ParseTable(json);
  if (tensors.ok()) return tensors;
  return Within(absl::StrCat("[Checkpoint] ", source), tensors.status());
}

absl::StatusOr<std::string> FormatIndex(const CheckpointIndex& index) {
  Json out = {{"format", kFormat}, {"version", kVersion}, {"step", index.state.step}};
  out["integers"] = index.state.integers;
  if (!index.config_checksum.empty()) out["config_xxh3"] = index.config_checksum;
  out["tensors"] = TableOf(index.tensors);
  try {
    out["xxh3"] = ChecksumOf(out.dump());
    return out.dump(1) + "\n";
  } catch (const Json::exception& error) {
    return Bad(absl::StrCat("[Checkpoint] cannot write the index: ", error.what()));
  }
}

absl::StatusOr<CheckpointIndex> ParseIndex(absl::string_view text, absl::string_view source) {
  MF_ASSIGN_OR_RETURN(Json json, ParseJson(text, source));
  absl::StatusOr<CheckpointIndex> index = ParseJsonIndex(std::move(json));
  if (index.ok()) return index;
  return Within(absl::StrCat("[Checkpoint] '", source, "'"), index.status());
}

}  // namespace meshfold::parallel
