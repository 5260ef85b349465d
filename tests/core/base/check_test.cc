#include "core/base/check.h"

#include <gtest/gtest.h>

namespace meshfold {
namespace {

TEST(CheckTest, PassingConditionsDoNothing) {
  int evaluated = 0;
  MF_CHECK(++evaluated > 0) << " never built " << ++evaluated;
  MF_CHECK_EQ(1, 1);
  MF_CHECK_NE(1, 2);
  MF_CHECK_LT(1, 2);
  MF_CHECK_LE(2, 2);
  MF_CHECK_GT(2, 1);
  MF_CHECK_GE(2, 2) << " message";
  EXPECT_EQ(evaluated, 1);
}

TEST(CheckTest, FailurePrintsPlaceConditionAndMessage) {
  EXPECT_DEATH(MF_CHECK(1 > 2) << " rank " << 3,
               "check_test.cc:[0-9]+: check failed: 1 > 2 rank 3");
}

TEST(CheckTest, ComparisonPrintsBothValues) {
  const int rows = 4;
  EXPECT_DEATH(MF_CHECK_EQ(rows, 5) << "in Linear", "\\(4 against 5\\) in Linear");
}

// An unbraced `else` must belong to the `if` that is seen, not to one inside the macro.
TEST(CheckTest, IsOneStatement) {
  bool reached_else = false;
  if (reached_else)
    MF_CHECK(true) << " message";
  else
    reached_else = true;
  EXPECT_TRUE(reached_else);
}

TEST(CheckTest, StatusErrorCarriesItsStatus) {
  try {
    ThrowInvalidArgument("[Linear] x has 3 columns");
    FAIL() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_STREQ(error.what(), "[Linear] x has 3 columns");
  }
}

TEST(CheckTest, ThrowIfErrorLetsOkPass) {
  EXPECT_NO_THROW(ThrowIfError(absl::OkStatus()));
  EXPECT_THROW(ThrowIfError(absl::DataLossError("torn file")), StatusError);
}

}  // namespace
}  // namespace meshfold
