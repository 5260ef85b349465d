#include "core/io/json.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

using JsonTest = ScratchTest;

TEST(ParseJsonTest, ReadsValues) {
  absl::StatusOr<nlohmann::json> value = ParseJson(R"({"a": [1, 2.5, {"a": null}], "b": {}})", "x");
  MF_ASSERT_OK(value);
  EXPECT_EQ((*value)["a"][1].get<double>(), 2.5);
}

TEST(ParseJsonTest, RefusesWithTheSourceInTheMessage) {
  auto refused = [](absl::string_view text, absl::string_view part) {
    absl::StatusOr<nlohmann::json> value = ParseJson(text, "dir/config.json");
    EXPECT_TRUE(FailsWith(value, absl::StatusCode::kInvalidArgument, "dir/config.json"));
    EXPECT_TRUE(FailsWith(value, absl::StatusCode::kInvalidArgument, part));
  };
  refused("", "not valid JSON");
  refused("{", "not valid JSON");
  refused("{} {}", "not valid JSON");
  refused("\"\xff\"", "not valid JSON");
  refused(R"({"a": {"k": 1, "x": 2, "k": 3}})", "repeats the key 'k'");
  refused(std::string(1000, '[') + std::string(1000, ']'), "deeper than 64");
}

TEST(ParseJsonTest, SameKeyInTwoObjectsIsFine) {
  MF_EXPECT_OK(ParseJson(R"([{"k": 1}, {"k": 2}, {"a": {"k": 1}, "k": 2}])", "x"));
}

TEST_F(JsonTest, ReadsFiles) {
  absl::StatusOr<nlohmann::json> value = ReadJsonFile(Put("x.json", "[1, 2]"));
  MF_ASSERT_OK(value);
  EXPECT_EQ(value->size(), 2u);
  EXPECT_TRUE(FailsWith(ReadJsonFile(Path("y.json")), absl::StatusCode::kNotFound, "y.json"));
  EXPECT_TRUE(
      FailsWith(ReadJsonFile(Path("x.json"), 3), absl::StatusCode::kResourceExhausted, "x.json"));
}

}  // namespace
}  // namespace meshfold
