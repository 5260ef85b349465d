#include "memory/pool_limits.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::memory {
namespace {

TEST(PoolLimitsTest, ReadsSizes) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"0", 0},
      {"1024", 1024},
      {"7B", 7},
      {"4GiB", int64_t{4} << 30},
      {"1.5 GiB", int64_t{3} << 29},
      {"250MB", 250000000},
      {"2kB", 2000},
      {"3KiB", 3072},
      {"2TiB", int64_t{2} << 40},
      {"4611686018427387904", int64_t{1} << 62},
  };
  for (const auto& [text, bytes] : cases) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(PoolLimitsTest, RefusesEverythingElse) {
  for (const std::string text :
       {"", "GiB", "4 gib", "-1", "4GiBs", "1e9", "4..5GiB", "0x10", "1.5", "inf", "nanGiB",
        "4 GiB ", "1.5B", "99999999999999999999", "5000000TiB", "9223372036854775807"}) {
    const absl::StatusOr<int64_t> parsed = ParseBytes(text);
    ASSERT_FALSE(parsed.ok()) << text << " gave " << *parsed;
    EXPECT_THAT(std::string(parsed.status().message()), ::testing::HasSubstr("'" + text + "'"));
  }
}

TEST(PoolLimitsTest, TextReadsBackExactly) {
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{1536} << 20,
                        int64_t{4} << 30, (int64_t{1} << 62), (int64_t{1} << 53) + 1}) {
    EXPECT_EQ(ParseBytes(BytesToText(bytes)).value(), bytes) << BytesToText(bytes);
  }
  EXPECT_EQ(BytesToText(int64_t{4} << 30), "4GiB");
  EXPECT_EQ(BytesToText(int64_t{1536} << 20), "1536MiB");
}

TEST(PoolLimitsTest, RoundsForHumans) {
  EXPECT_EQ(BytesForHumans(12), "12 B");
  EXPECT_EQ(BytesForHumans(1536), "1.50 KiB");
  EXPECT_EQ(BytesForHumans((int64_t{4} << 30) + 1), "4.00 GiB");
}

}  // namespace
}  // namespace meshfold::memory
