#include "memory/pool_limits.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace meshfold::memory {
namespace {

struct Unit {
  const char* name;
  double bytes;
};
constexpr std::array<Unit, 9> kUnits = {{{"B", 1},
                                         {"kB", 1e3},
                                         {"MB", 1e6},
                                         {"GB", 1e9},
                                         {"TB", 1e12},
                                         {"KiB", 1024.0},
                                         {"MiB", 1048576.0},
                                         {"GiB", 1073741824.0},
                                         {"TiB", 1099511627776.0}}};
constexpr size_t kFirstBinary = 5;
constexpr double kMaxBytes = 4611686018427387904.0;  // 2^62

absl::Status NotASize(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text,
                   "' is not a size; write bytes as a whole number, or a number with one of "
                   "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, as in 4GiB"));
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  const absl::string_view number = text.substr(0, digits);
  absl::string_view name = digits == absl::string_view::npos ? "" : text.substr(digits);
  name = absl::StripLeadingAsciiWhitespace(name);
  int64_t whole = 0;
  if (name.empty() && digits == absl::string_view::npos && absl::SimpleAtoi(number, &whole)) {
    if (static_cast<double>(whole) <= kMaxBytes) return whole;
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is above 2^62 bytes"));
  }
  double value = 0;
  if (number.empty() || name.empty() || !absl::SimpleAtod(number, &value)) return NotASize(text);
  for (const Unit& unit : kUnits) {
    if (name != unit.name) continue;
    const double bytes = value * unit.bytes;
    if (bytes > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' is above 2^62 bytes"));
    }
    if (bytes != std::floor(bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is not a whole number of bytes"));
    }
    return static_cast<int64_t>(bytes);
  }
  return NotASize(text);
}

std::string BytesToText(int64_t bytes) {
  for (size_t i = kUnits.size() - 1; i >= kFirstBinary; --i) {
    const int64_t unit = static_cast<int64_t>(kUnits[i].bytes);
    if (bytes != 0 && bytes % unit == 0) return absl::StrCat(bytes / unit, kUnits[i].name);
  }
  return absl::StrCat(bytes);
}

std::string BytesForHumans(int64_t bytes) {
  for (size_t i = kUnits.size() - 1; i >= kFirstBinary; --i) {
    if (static_cast<double>(bytes) >= kUnits[i].bytes) {
      return absl::StrFormat("%.2f %s", static_cast<double>(bytes) / kUnits[i].bytes,
                             kUnits[i].name);
    }
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace meshfold::memory
