#include "core/io/file_dtype.h"

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

struct DTypeEntry {
  FileDType dtype;
  const char* name;
  int64_t bytes;
};

constexpr DTypeEntry kDTypes[] = {
    {FileDType::kBool, "BOOL", 1},      {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},          {FileDType::kF8E5M2, "F8_E5M2", 1},
    {FileDType::kF8E4M3, "F8_E4M3", 1}, {FileDType::kF8E8M0, "F8_E8M0", 1},
    {FileDType::kI16, "I16", 2},        {FileDType::kU16, "U16", 2},
    {FileDType::kF16, "F16", 2},        {FileDType::kBF16, "BF16", 2},
    {FileDType::kI32, "I32", 4},        {FileDType::kU32, "U32", 4},
    {FileDType::kF32, "F32", 4},        {FileDType::kC64, "C64", 8},
    {FileDType::kF64, "F64", 8},        {FileDType::kI64, "I64", 8},
    {FileDType::kU64, "U64", 8},
};

const DTypeEntry& EntryOf(FileDType dtype) {
  const DTypeEntry& entry = kDTypes[static_cast<int>(dtype)];
  MF_CHECK(entry.dtype == dtype);
  return entry;
}

}  // namespace

int64_t SizeOf(FileDType dtype) { return EntryOf(dtype).bytes; }

const char* FileDTypeName(FileDType dtype) { return EntryOf(dtype).name; }

absl::StatusOr<FileDType> ParseFileDType(absl::string_view name) {
  for (const DTypeEntry& entry : kDTypes) {
    if (name == entry.name) return entry.dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", name.substr(0, 32), "'"));
}

FileDType FileDTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return FileDType::kF64;
    case DType::kF32:
      return FileDType::kF32;
    case DType::kBF16:
      return FileDType::kBF16;
    case DType::kF16:
      return FileDType::kF16;
    case DType::kI32:
      return FileDType::kI32;
    case DType::kI64:
      return FileDType::kI64;
    case DType::kU8:
      return FileDType::kU8;
  }
  MF_CHECK(false) << " dtype code " << static_cast<int>(dtype);
  return FileDType::kF32;
}

}  // namespace meshfold
