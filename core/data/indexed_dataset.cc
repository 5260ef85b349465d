#include "core/data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/data/token_meta.h"

namespace meshfold {
namespace {

constexpr char kMagic[] = "MMIDIDX\0";  // 9 bytes with the final NUL
constexpr int64_t kMagicBytes = 9;
static_assert(sizeof(kMagic) == kMagicBytes);
constexpr int64_t kHeaderBytes = 34;
constexpr uint64_t kVersion = 1;
constexpr int64_t kSmallVocab = 65500;  // vocabularies below it are stored in 16 bits

template <typename T>
T Load(const char* bytes, int64_t i = 0) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

// The format's codes; 6 and 7 are f64 and f32.
struct TypeCode {
  TokenType type;
  uint8_t code;
};
constexpr TypeCode kTypeCodes[] = {
    {TokenType::kU8, 1},  {TokenType::kI8, 2},  {TokenType::kI16, 3},
    {TokenType::kI32, 4}, {TokenType::kI64, 5}, {TokenType::kU16, 8},
};

absl::StatusOr<TokenType> TypeOfCode(uint8_t code) {
  for (const TypeCode& entry : kTypeCodes) {
    if (entry.code == code) return entry.type;
  }
  return absl::InvalidArgumentError(absl::StrCat(code == 6 || code == 7
                                                     ? "holds floats, not tokens: type code "
                                                     : "has the unknown type code ",
                                                 code));
}

uint8_t CodeOfType(TokenType type) {
  for (const TypeCode& entry : kTypeCodes) {
    if (entry.type == type) return entry.code;
  }
  MF_CHECK(false) << " token type " << static_cast<int>(type);
  return 0;
}

}  // namespace

absl::StatusOr<TokenIndex> TokenIndex::Parse(absl::Span<const char> idx, int64_t bin_bytes,
                                             absl::string_view path) {
  auto refuse = [path](absl::string_view reason) {
    return absl::InvalidArgumentError(absl::StrCat("[IndexedDataset] '", path, "' ", reason));
  };
  int64_t size = static_cast<int64_t>(idx.size());
  if (size < kHeaderBytes) return refuse(absl::StrCat("is ", size, " bytes long, too short"));
  if (std::memcmp(idx.data(), kMagic, kMagicBytes) != 0) return refuse("is not an .idx file");
  uint64_t version = Load<uint64_t>(idx.data() + kMagicBytes);
  if (version != kVersion) return refuse(absl::StrCat("has version ", version, ", not 1"));
  absl::StatusOr<TokenType> type = TypeOfCode(static_cast<uint8_t>(idx[17]));
  if (!type.ok()) return refuse(std::string(type.status().message()));
  uint64_t sequences = Load<uint64_t>(idx.data() + 18), borders = Load<uint64_t>(idx.data() + 26);
  // Each entry takes bytes of the file: larger counts cannot be true, and smaller ones cannot
  // overflow the sums below.
  uint64_t limit = idx.size();
  if (sequences > limit || borders > limit || borders == 0) {
    return refuse(absl::StrCat("announces ", sequences, " sequences and ", borders,
                               " document borders in ", size, " bytes"));
  }
  TokenIndex index;
  index.type_ = *type;
  index.num_sequences_ = static_cast<int64_t>(sequences);
  index.num_borders_ = static_cast<int64_t>(borders);
  int64_t wanted = kHeaderBytes + 12 * index.num_sequences_ + 8 * index.num_borders_;
  if (size != wanted && size != wanted + index.num_sequences_) {  // with and without modes
    return refuse(absl::StrCat("is ", size, " bytes long, but ", sequences, " sequences and ",
                               borders, " document borders take ", wanted));
  }
  index.lengths_ = idx.data() + kHeaderBytes;
  index.offsets_ = index.lengths_ + 4 * index.num_sequences_;
  index.borders_ = index.offsets_ + 8 * index.num_sequences_;
  absl::Status status = index.Check(bin_bytes);
  if (!status.ok()) return refuse(std::string(status.message()));
  return index;
}

absl::Status TokenIndex::Check(int64_t bin_bytes) const {
  int64_t size = SizeOf(type_);
  for (int64_t i = 0; i < num_sequences_; ++i) {
    int64_t length = sequence_length(i), offset = sequence_offset(i);
    if (length < 0 || offset < 0 || offset > bin_bytes || length > (bin_bytes - offset) / size) {
      return absl::InvalidArgumentError(absl::StrCat("puts sequence ", i, " of ", length,
                                                     " tokens of ", size, " bytes at byte ", offset,
                                                     " of a .bin file of ", bin_bytes, " bytes"));
    }
  }
  int64_t last = 0;
  for (int64_t d = 0; d < num_borders_; ++d) {
    int64_t border = document_begin(d);
    if (d == 0 ? border != 0 : border < last) {
      return absl::InvalidArgumentError(
          absl::StrCat("starts document ", d, " at sequence ", border, " after ", last));
    }
    last = border;
  }
  if (last == num_sequences_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ends its documents at sequence ", last, " of ", num_sequences_));
}

int64_t TokenIndex::sequence_length(int64_t sequence) const {
  return Load<int32_t>(lengths_, sequence);
}

int64_t TokenIndex::sequence_offset(int64_t sequence) const {
  return Load<int64_t>(offsets_, sequence);
}

int64_t TokenIndex::document_begin(int64_t document) const {
  return Load<int64_t>(borders_, document);
}

IndexedDataset::IndexedDataset(std::string prefix, std::shared_ptr<const MappedFile> idx,
                               std::shared_ptr<const MappedFile> bin, TokenIndex index,
                               int64_t vocab_size)
    : prefix_(std::move(prefix)),
      idx_(std::move(idx)),
      bin_(std::move(bin)),
      index_(index),
      vocab_size_(vocab_size) {}

absl::StatusOr<std::shared_ptr<const IndexedDataset>> IndexedDataset::Open(
    const std::string& prefix) {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> idx, MappedFile::Open(prefix + ".idx"));
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> bin, MappedFile::Open(prefix + ".bin"));
  MF_ASSIGN_OR_RETURN(TokenIndex index,
                      TokenIndex::Parse(idx->bytes(), bin->bytes().size(), prefix + ".idx"));
  MF_ASSIGN_OR_RETURN(int64_t vocab_size, ReadVocabSize(prefix));
  return std::shared_ptr<const IndexedDataset>(
      new IndexedDataset(prefix, std::move(idx), std::move(bin), index, vocab_size));
}

int64_t IndexedDataset::document_length(int64_t i) const {
  int64_t length = 0;
  for (int64_t s = index_.document_begin(i); s < index_.document_begin(i + 1); ++s) {
    length += index_.sequence_length(s);
  }
  return length;
}

absl::Status IndexedDataset::Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const {
  MF_CHECK(begin >= 0 && count >= 0) << " " << prefix_;
  int64_t done = 0, skip = begin;
  int64_t size = SizeOf(index_.type());
  for (int64_t s = index_.document_begin(i); done < count; ++s) {
    MF_CHECK_LT(s, index_.document_begin(i + 1)) << prefix_ << " read beyond document " << i;
    int64_t length = index_.sequence_length(s);
    int64_t first = std::min(skip, length);
    skip -= first;
    int64_t here = std::min(length - first, count - done);
    const char* bytes = bin_->bytes().data() + index_.sequence_offset(s) + first * size;
    int64_t bad = ConvertTokens(index_.type(), bytes, here, out + done);
    if (bad < here) return TokenRangeError(prefix_, i, begin + done + bad);
    done += here;
  }
  return absl::OkStatus();
}

int64_t IndexedDataset::vocab_bound() const { return TokenBound(index_.type()); }

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, int64_t vocab_size,
                                           std::unique_ptr<DurableFileWriter> bin)
    : prefix_(std::move(prefix)),
      vocab_size_(vocab_size),
      type_(vocab_size < kSmallVocab ? TokenType::kU16 : TokenType::kI32),
      bin_(std::move(bin)) {}

absl::StatusOr<std::unique_ptr<IndexedDatasetWriter>> IndexedDatasetWriter::Create(
    const std::string& prefix, int64_t vocab_size) {
  if (vocab_size <= 0 || vocab_size > int64_t{INT32_MAX} + 1) {
    return absl::InvalidArgumentError(absl::StrCat("[IndexedDataset] '", prefix,
                                                   "': vocabulary size ", vocab_size,
                                                   " out of range [1, 2^31]"));
  }
  MF_ASSIGN_OR_RETURN(std::unique_ptr<DurableFileWriter> bin,
                      DurableFileWriter::Create(prefix + ".bin"));
  return std::unique_ptr<IndexedDatasetWriter>(
      new IndexedDatasetWriter(prefix, vocab_size, std::move(bin)));
}

absl::Status IndexedDatasetWriter::AddDocument(absl::Span<const int32_t> tokens) {
  if (tokens.size() > INT32_MAX) {
    return absl::OutOfRangeError(absl::StrCat("[IndexedDataset] '", prefix_, "': document ",
                                              lengths_.size(), " has ", tokens.size(),
                                              " tokens, more than 2^31 - 1"));
  }
  std::string bytes;
  bytes.reserve(tokens.size() * SizeOf(type_));
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (tokens[t] < 0 || tokens[t] >= vocab_size_) {
      return absl::OutOfRangeError(absl::StrCat("[IndexedDataset] '", prefix_, "': id ", tokens[t],
                                                " out of range [0, ", vocab_size_, ") at token ", t,
                                                " of document ", lengths_.size()));
    }
    if (type_ == TokenType::kU16) {
      Store(static_cast<uint16_t>(tokens[t]), bytes);
    } else {
      Store(tokens[t], bytes);
    }
  }
  MF_RETURN_IF_ERROR(bin_->Append(bytes));
  lengths_.push_back(static_cast<int32_t>(tokens.size()));
  return absl::OkStatus();
}

absl::Status IndexedDatasetWriter::Close() {
  MF_RETURN_IF_ERROR(RemoveTree(prefix_ + ".idx"));
  MF_RETURN_IF_ERROR(bin_->Close());
  uint64_t count = lengths_.size();
  std::string idx(kMagic, kMagicBytes);
  Store(kVersion, idx);
  Store(CodeOfType(type_), idx);
  Store(count, idx);
  Store(count + 1, idx);
  for (int32_t length : lengths_) Store(length, idx);
  int64_t offset = 0;
  for (int32_t length : lengths_) {
    Store(offset, idx);
    offset += length * SizeOf(type_);
  }
  for (uint64_t d = 0; d <= count; ++d) Store(static_cast<int64_t>(d), idx);
  return WriteFile(prefix_ + ".idx", idx);
}

}  // namespace meshfold
