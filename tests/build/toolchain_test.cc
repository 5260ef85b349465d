// One trivial call into each library that the project stands on: fails when a package is missing,
// too old, or not linked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lz4.h>
#include <xxhash.h>
#include <yaml-cpp/yaml.h>
#include <zstd.h>

#include <Eigen/Dense>
#include <boost/context/fiber.hpp>
#include <concepts>
#include <nlohmann/json.hpp>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "tests/build/highway_sum.h"

namespace meshfold::build_test {
namespace {

using ::testing::ElementsAre;

TEST(ToolchainTest, CompilesCpp20) {
  struct Options {
    int num_experts = 8;
    int top_k = 2;
  };
  const Options options{.top_k = 4};  // must not warn
  auto twice = []<std::integral T>(T value) { return 2 * value; };
  EXPECT_EQ(twice(options.top_k), options.num_experts);
}

absl::StatusOr<int> ParseRank(absl::string_view text) {
  int rank = 0;
  if (!absl::SimpleAtoi(text, &rank)) {
    return absl::InvalidArgumentError(absl::StrCat("[ParseRank] not a number: ", text));
  }
  return rank;
}

TEST(ToolchainTest, LinksAbseil) {
  EXPECT_EQ(*ParseRank("7"), 7);
  EXPECT_EQ(ParseRank("x").status().message(), "[ParseRank] not a number: x");
  EXPECT_EQ(absl::StrFormat("%d of %s", 3, absl::StrJoin({1, 2}, ",")), "3 of 1,2");
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit("a.b", '.')), ElementsAre("a", "b"));
  absl::flat_hash_map<std::string, int> map;
  map["tp"] = 2;
  EXPECT_EQ(map.at("tp"), 2);
  const std::vector<int> values = {1, 2, 3};
  EXPECT_EQ(absl::MakeConstSpan(values).subspan(1).size(), 2u);
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  EXPECT_GT(absl::Now(), absl::UnixEpoch());
}

TEST(ToolchainTest, IncludesEigen) {
  Eigen::Matrix2f a = Eigen::Matrix2f::Identity() * 3;
  EXPECT_EQ((a * a)(1, 1), 9);
}

TEST(ToolchainTest, LinksOneDnn) {
  const std::vector<float> a = {1, 2, 3, 4};
  const std::vector<float> b = {1, 0, 0, 1};
  std::vector<float> c(4);
  ASSERT_EQ(dnnl_sgemm('N', 'N', 2, 2, 2, 1.0f, a.data(), 2, b.data(), 2, 0.0f, c.data(), 2),
            dnnl_success);
  EXPECT_EQ(a, c);
}

TEST(ToolchainTest, DispatchesHighwayAtRunTime) {
  std::vector<float> values(101);
  std::iota(values.begin(), values.end(), 0.0f);
  EXPECT_EQ(HighwaySum(values), 5050);
}

TEST(ToolchainTest, ReadsYamlAndJson) {
  EXPECT_EQ(YAML::Load("{moe: {experts: 8}}")["moe"]["experts"].as<int>(), 8);
  EXPECT_EQ(nlohmann::json::parse(R"({"step": 3})")["step"], 3);
}

TEST(ToolchainTest, SwitchesFibers) {
  std::string order;
  boost::context::fiber fiber([&](boost::context::fiber&& main) {
    order += 'a';
    main = std::move(main).resume();
    order += 'c';
    return std::move(main);
  });
  fiber = std::move(fiber).resume();
  order += 'b';
  fiber = std::move(fiber).resume();
  EXPECT_EQ(order, "abc");
}

TEST(ToolchainTest, HashesAndCompresses) {
  const std::string text(1000, 'm');
  EXPECT_EQ(XXH3_64bits(text.data(), 0), 0x2d06800538d394c2u);  // the hash of nothing, seed 0
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  std::string back(text.size(), '\0');
  EXPECT_EQ(ZSTD_decompress(back.data(), back.size(), packed.data(), packed.size()), text.size());
  EXPECT_EQ(back, text);
  EXPECT_GT(LZ4_compressBound(100), 100);
}

}  // namespace
}  // namespace meshfold::build_test
