#include "core/data/token_type.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold {
namespace {

template <typename T>
int64_t Convert(const char* bytes, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    if (!std::in_range<int32_t>(value) || std::cmp_less(value, 0)) return i;
    out[i] = static_cast<int32_t>(value);
  }
  return count;
}

template <typename T>
int64_t Bound() {
  constexpr uint64_t kMax = std::numeric_limits<T>::max();
  return static_cast<int64_t>(std::min<uint64_t>(kMax, INT32_MAX)) + 1;
}

// Calls body.operator()<T>() with the C++ type of `type`.
template <typename F>
int64_t WithType(TokenType type, F&& body) {
  switch (type) {
    case TokenType::kU8:
      return body.template operator()<uint8_t>();
    case TokenType::kI8:
      return body.template operator()<int8_t>();
    case TokenType::kI16:
      return body.template operator()<int16_t>();
    case TokenType::kU16:
      return body.template operator()<uint16_t>();
    case TokenType::kI32:
      return body.template operator()<int32_t>();
    case TokenType::kU32:
      return body.template operator()<uint32_t>();
    case TokenType::kI64:
      return body.template operator()<int64_t>();
  }
  MF_CHECK(false) << " token type " << static_cast<int>(type);
  return 0;
}

}  // namespace

int64_t SizeOf(TokenType type) {
  return WithType(type, []<typename T>() { return static_cast<int64_t>(sizeof(T)); });
}

int64_t TokenBound(TokenType type) {
  return WithType(type, []<typename T>() { return Bound<T>(); });
}

int64_t ConvertTokens(TokenType type, const char* bytes, int64_t count, int32_t* out) {
  return WithType(type, [&]<typename T>() { return Convert<T>(bytes, count, out); });
}

absl::Status TokenRangeError(absl::string_view dataset, int64_t document, int64_t position) {
  return absl::OutOfRangeError(absl::StrCat("[Dataset] '", dataset, "': the id at token ", position,
                                            " of document ", document,
                                            " is negative or above 2^31 - 1"));
}

}  // namespace meshfold
