// Token ids as files store them: integers of several widths, little-endian, not aligned.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace meshfold {

enum class TokenType : uint8_t { kU8, kI8, kI16, kU16, kI32, kU32, kI64 };

// Bytes of one id.
int64_t SizeOf(TokenType type);

// One more than the largest id that fits, at most 2^31.
int64_t TokenBound(TokenType type);

// Widens `count` ids at `bytes` into `out`. Returns `count`, or the position of the first id that
// is negative or above 2^31 - 1, where it stops.
int64_t ConvertTokens(TokenType type, const char* bytes, int64_t count, int32_t* out);

// The Status for such an id.
absl::Status TokenRangeError(absl::string_view dataset, int64_t document, int64_t position);

}  // namespace meshfold
