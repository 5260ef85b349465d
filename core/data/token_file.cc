#include "core/data/token_file.h"

#include <cctype>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/data/token_meta.h"
#include "core/io/safetensors.h"

namespace meshfold {
namespace {

constexpr char kNpyMagic[] = "\x93NUMPY";
constexpr int64_t kNpyMagicBytes = 6;
constexpr int64_t kMaxNpyHeaderBytes = 1 << 16;

absl::StatusOr<TokenType> TypeOfDescr(absl::string_view descr) {
  if (descr == "|u1") return TokenType::kU8;
  if (descr == "|i1") return TokenType::kI8;
  if (descr == "<i2") return TokenType::kI16;
  if (descr == "<u2") return TokenType::kU16;
  if (descr == "<i4") return TokenType::kI32;
  if (descr == "<u4") return TokenType::kU32;
  if (descr == "<i8") return TokenType::kI64;
  return absl::InvalidArgumentError(absl::StrCat("has elements of type '", descr.substr(0, 32),
                                                 "', not little-endian integers of up to 64 bits"));
}

absl::StatusOr<TokenType> TypeOfFile(FileDType dtype) {
  switch (dtype) {
    case FileDType::kU8:
      return TokenType::kU8;
    case FileDType::kU16:
      return TokenType::kU16;
    case FileDType::kI32:
      return TokenType::kI32;
    case FileDType::kU32:
      return TokenType::kU32;
    case FileDType::kI64:
      return TokenType::kI64;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("has tokens of type ", FileDTypeName(dtype), ", not integers"));
  }
}

// The value of `key` in the text of a Python dict with the fixed form that NumPy writes:
// {'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }. Up to `end`, without quotes.
absl::StatusOr<absl::string_view> FieldOf(absl::string_view dict, absl::string_view key,
                                          absl::string_view end) {
  std::string start = absl::StrCat("'", key, "': ");
  size_t at = dict.find(start);
  size_t stop = at == dict.npos ? dict.npos : dict.find(end, at + start.size());
  if (stop == dict.npos || dict.find(start, stop) != dict.npos) {
    return absl::InvalidArgumentError(absl::StrCat("has a header without one '", key, "'"));
  }
  return dict.substr(at + start.size(), stop - at - start.size());
}

absl::StatusOr<std::vector<int64_t>> ParseShape(absl::string_view text) {
  if (!absl::ConsumePrefix(&text, "(")) {
    return absl::InvalidArgumentError("has a header without a shape");
  }
  std::vector<int64_t> shape;
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent) || extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat("has the shape '", text.substr(0, 80), "'"));
    }
    shape.push_back(extent);
  }
  return shape;
}

// Reads length and place of the dict.
absl::StatusOr<absl::string_view> DictOf(absl::Span<const char> file) {
  if (file.size() < 12 || std::memcmp(file.data(), kNpyMagic, kNpyMagicBytes) != 0) {
    return absl::InvalidArgumentError("is not a .npy file");
  }
  int major = static_cast<unsigned char>(file[6]);
  if (major < 1 || major > 3) {
    return absl::InvalidArgumentError(absl::StrCat("has .npy version ", major, ", not 1 to 3"));
  }
  size_t length_bytes = major == 1 ? 2 : 4;
  uint32_t length = 0;
  std::memcpy(&length, file.data() + 8, length_bytes);
  size_t begin = 8 + length_bytes;
  if (length > kMaxNpyHeaderBytes || length > file.size() - begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("announces a header of ", length, " bytes in ", file.size()));
  }
  return absl::string_view(file.data() + begin, length);
}

absl::StatusOr<NpyHeader> ParseNpy(absl::Span<const char> file) {
  MF_ASSIGN_OR_RETURN(absl::string_view dict, DictOf(file));
  MF_ASSIGN_OR_RETURN(absl::string_view descr, FieldOf(dict, "descr", ","));
  MF_ASSIGN_OR_RETURN(absl::string_view fortran, FieldOf(dict, "fortran_order", ","));
  MF_ASSIGN_OR_RETURN(absl::string_view shape, FieldOf(dict, "shape", ")"));
  NpyHeader header;
  if (!absl::ConsumePrefix(&descr, "'") || !absl::ConsumeSuffix(&descr, "'")) {
    return absl::InvalidArgumentError("is not an array of plain numbers");
  }
  MF_ASSIGN_OR_RETURN(header.type, TypeOfDescr(descr));
  MF_ASSIGN_OR_RETURN(header.shape, ParseShape(shape));
  if (fortran != "False" && header.shape.size() > 1) {
    return absl::InvalidArgumentError("is in Fortran order");
  }
  header.data_begin = dict.data() + dict.size() - file.data();
  int64_t bytes = SizeOf(header.type);
  bool overflow = false;
  for (int64_t extent : header.shape) {
    overflow = overflow || __builtin_mul_overflow(bytes, extent, &bytes);
  }
  int64_t present = static_cast<int64_t>(file.size()) - header.data_begin;
  if (overflow || bytes != present) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", present, " bytes of data for the shape [", absl::StrJoin(header.shape, ", "),
        "] of ", SizeOf(header.type), " bytes each"));
  }
  return header;
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::Span<const char> file, absl::string_view path) {
  absl::StatusOr<NpyHeader> header = ParseNpy(file);
  if (header.ok()) return header;
  return absl::InvalidArgumentError(
      absl::StrCat("[TokenFile] '", path, "' ", std::string(header.status().message())));
}

absl::StatusOr<std::shared_ptr<const TokenFile>> TokenFile::Open(const std::string& path) {
  std::shared_ptr<TokenFile> file(new TokenFile());
  file->path_ = path;
  MF_RETURN_IF_ERROR(absl::EndsWith(path, ".npy") ? file->OpenNpy() : file->OpenSafetensors());
  MF_ASSIGN_OR_RETURN(file->vocab_size_, ReadVocabSize(path.substr(0, path.rfind('.'))));
  return std::shared_ptr<const TokenFile>(std::move(file));
}

absl::Status TokenFile::OpenNpy() {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path_));
  MF_ASSIGN_OR_RETURN(NpyHeader header, ParseNpyHeader(file->bytes(), path_));
  type_ = header.type;
  data_ = file->bytes().data() + header.data_begin;
  owner_ = std::move(file);
  return SetShape(header.shape);
}

absl::Status TokenFile::OpenSafetensors() {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path_));
  const char* name = file->Has("input_ids") ? "input_ids" : "tokens";
  if (!file->Has(name)) return Refuse("has neither a tensor 'input_ids' nor 'tokens'");
  SafetensorsInfo info = file->info(name).value();
  absl::StatusOr<TokenType> type = TypeOfFile(info.dtype);
  if (!type.ok()) return Refuse(std::string(type.status().message()));
  type_ = *type;
  data_ = file->bytes(name)->data();
  owner_ = file;
  MF_RETURN_IF_ERROR(SetShape(info.shape));
  if (!file->Has("cu_seqlens")) return absl::OkStatus();
  SafetensorsInfo borders = file->info("cu_seqlens").value();
  if (info.shape.size() != 1 || borders.dtype != FileDType::kI64 || borders.shape.size() != 1 ||
      borders.shape[0] < 2) {
    return Refuse("has 'cu_seqlens', which must be I64 [N+1] beside tokens of shape [T]");
  }
  borders_.resize(borders.shape[0]);
  std::memcpy(borders_.data(), file->bytes("cu_seqlens")->data(), borders.end - borders.begin);
  for (size_t i = 0; i < borders_.size(); ++i) {
    if (i == 0 ? borders_[0] != 0 : borders_[i] < borders_[i - 1]) {
      return Refuse(absl::StrCat("has the border ", borders_[i], " at position ", i,
                                 " of cu_seqlens, out of order"));
    }
  }
  if (borders_.back() == info.shape[0]) return absl::OkStatus();
  return Refuse(absl::StrCat("has cu_seqlens that end at ", borders_.back(), " of ", info.shape[0],
                             " tokens"));
}

absl::Status TokenFile::SetShape(absl::Span<const int64_t> shape) {
  if (shape.size() != 1 && shape.size() != 2) {
    return Refuse(
        absl::StrCat("has tokens of shape [", absl::StrJoin(shape, ", "), "], not [T] or [N, L]"));
  }
  int64_t documents = shape.size() == 1 ? 1 : shape[0], length = shape.back();
  if (length == 0) documents = 0;  // [N, 0] may announce any N
  for (int64_t i = 0; i <= documents; ++i) borders_.push_back(i * length);
  return absl::OkStatus();
}

absl::Status TokenFile::Refuse(absl::string_view reason) const {
  return absl::InvalidArgumentError(absl::StrCat("[TokenFile] '", path_, "' ", reason));
}

absl::Status TokenFile::Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const {
  MF_CHECK(begin >= 0 && count >= 0 && begin + count <= document_length(i)) << " " << path_;
  const char* bytes = data_ + (borders_[i] + begin) * SizeOf(type_);
  int64_t good = ConvertTokens(type_, bytes, count, out);
  return good == count ? absl::OkStatus() : TokenRangeError(path_, i, begin + good);
}

}  // namespace meshfold
