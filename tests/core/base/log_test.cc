#include "core/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace meshfold {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(LoggerTest, LabelsTroubleAndTagsTheRank) {
  Logger logger("rank 3");
  CaptureStderr();
  logger.Info("step 1");
  logger.Warning("slow link");
  logger.Error("disk full");
  EXPECT_EQ(GetCapturedStderr(),
            "[rank 3] step 1\n[rank 3] warning: slow link\n[rank 3] error: disk full\n");
}

TEST(LoggerTest, DropsLinesBelowItsLevelFromStderrOnly) {
  const std::string path = ::testing::TempDir() + "/logger_test_level.txt";
  std::remove(path.c_str());
  Logger logger("", LogLevel::kWarning);
  ASSERT_TRUE(logger.OpenFile(path).ok());
  CaptureStderr();
  logger.Write(LogLevel::kDebug, "quiet");
  logger.Error("loud");
  EXPECT_EQ(GetCapturedStderr(), "error: loud\n");
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text,
              ContainsRegex("^20[0-9-]+ [0-9:]+ debug quiet\n20[0-9-]+ [0-9:]+ error loud\n"));
}

TEST(LoggerTest, AppendsToAnExistingFile) {
  const std::string path = ::testing::TempDir() + "/logger_test_append.txt";
  std::remove(path.c_str());
  for (const char* message : {"first run", "second run"}) {
    Logger logger("", LogLevel::kError);
    ASSERT_TRUE(logger.OpenFile(path).ok());
    logger.Info(message);
  }
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, HasSubstr("first run"));
  EXPECT_THAT(text, HasSubstr("second run"));
}

TEST(LoggerTest, FileBeginsWithWhatWasWrittenBeforeItWasOpened) {
  const std::string path = ::testing::TempDir() + "/logger_test_early.txt";
  std::remove(path.c_str());
  Logger logger("", LogLevel::kError);
  logger.Info("resumed");
  ASSERT_TRUE(logger.OpenFile(path).ok());
  logger.Info("step 1");
  ASSERT_TRUE(logger.OpenFile(path).ok());
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(text, ContainsRegex("^[^\n]* info resumed\n[^\n]* info step 1\n$"));
}

TEST(LoggerTest, UnwritablePathIsAnError) {
  Logger logger;
  const absl::Status status = logger.OpenFile("/no/such/folder/log.txt");
  EXPECT_THAT(std::string(status.message()), HasSubstr("/no/such/folder/log.txt"));
}

}  // namespace
}  // namespace meshfold
