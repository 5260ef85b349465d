#include "core/base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace meshfold {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  MF_ASSIGN_OR_RETURN(int half, Half(x));
  MF_ASSIGN_OR_RETURN(half, Half(half));
  return half;
}

absl::Status CheckQuarter(int x, bool* passed) {
  MF_RETURN_IF_ERROR(Quarter(x).status());
  *passed = true;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignsOrReturns) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(7).status().message(), "odd");
}

TEST(StatusMacrosTest, ReturnsEarlyOnError) {
  bool passed = false;
  EXPECT_FALSE(CheckQuarter(6, &passed).ok());
  EXPECT_FALSE(passed);
  EXPECT_TRUE(CheckQuarter(8, &passed).ok());
  EXPECT_TRUE(passed);
}

TEST(StatusMacrosTest, AssignsMoveOnlyValues) {
  auto make = []() -> absl::StatusOr<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  auto use = [&]() -> absl::StatusOr<int> {
    MF_ASSIGN_OR_RETURN(std::unique_ptr<int> value, make());
    return *value;
  };
  EXPECT_EQ(*use(), 5);
}

TEST(StatusMacrosTest, ValueOrThrowUnwraps) {
  EXPECT_EQ(ValueOrThrow(Half(8)), 4);
  EXPECT_THROW(ValueOrThrow(Half(9)), StatusError);
}

}  // namespace
}  // namespace meshfold
