// What tests of files share: an own empty directory, and Status in assertions.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/io/file.h"

namespace meshfold {

// A fixture with a directory of its own, removed afterwards.
class ScratchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ =
        absl::StrCat(::testing::TempDir(), "/", info->test_suite_name(), ".", info->name());
    ASSERT_TRUE(RemoveTree(directory_).ok());
    ASSERT_TRUE(MakeDirs(directory_).ok());
  }
  void TearDown() override { EXPECT_TRUE(RemoveTree(directory_).ok()); }

  const std::string& directory() const { return directory_; }
  std::string Path(absl::string_view name) const { return JoinPath(directory_, name); }
  // Writes a file and returns its path.
  std::string Put(absl::string_view name, absl::string_view contents) const {
    std::string path = Path(name);
    EXPECT_TRUE(MakeDirs(DirName(path)).ok());
    EXPECT_TRUE(WriteFile(path, contents).ok());
    return path;
  }

 private:
  std::string directory_;
};

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

// True when a Status or StatusOr has `code` and its message holds `part`.
template <typename Result>
::testing::AssertionResult FailsWith(const Result& result, absl::StatusCode code,
                                     absl::string_view part) {
  const absl::Status& status = StatusOf(result);
  if (status.code() == code && absl::StrContains(status.message(), part)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "got " << status << ", want " << absl::StatusCodeToString(code) << " with '"
         << std::string(part) << "'";
}

}  // namespace meshfold

#define MF_ASSERT_OK(expr)                                            \
  do {                                                                \
    const auto& mf_result_ = (expr);                                  \
    ASSERT_TRUE(mf_result_.ok()) << ::meshfold::StatusOf(mf_result_); \
  } while (false)
#define MF_EXPECT_OK(expr)                                            \
  do {                                                                \
    const auto& mf_result_ = (expr);                                  \
    EXPECT_TRUE(mf_result_.ok()) << ::meshfold::StatusOf(mf_result_); \
  } while (false)
