#include "comm/launch.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

LaunchInfo Detect(const std::map<std::string, std::string>& environment) {
  return DetectLaunch([&](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  });
}

TEST(LaunchTest, AProcessStartedByHandIsAlone) {
  const LaunchInfo info = Detect({});
  EXPECT_EQ(info.launcher, "");
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.local_size, 1);
}

TEST(LaunchTest, ReadsOpenMpi) {
  const LaunchInfo info = Detect({{"OMPI_COMM_WORLD_RANK", "5"},
                                  {"OMPI_COMM_WORLD_SIZE", "8"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}});
  EXPECT_EQ(info.launcher, "Open MPI");
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_size, 4);
}

TEST(LaunchTest, ReadsPmi) {
  const LaunchInfo info = Detect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(info.launcher, "PMI");
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.size, 2);
}

TEST(LaunchTest, NonsenseCountsAsNotSet) {
  EXPECT_EQ(Detect({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}).size, 1);
  EXPECT_EQ(Detect({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "many"}}).size, 1);
}

}  // namespace
}  // namespace meshfold::comm
