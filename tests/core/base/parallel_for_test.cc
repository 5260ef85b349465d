#include "core/base/parallel_for.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace meshfold {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

Ranges RangesOf(int64_t count, int64_t grain, int num_threads) {
  Ranges ranges;
  std::mutex mutex;
  ParallelFor(count, grain, num_threads, [&](int64_t begin, int64_t end) {
    std::lock_guard<std::mutex> lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

class ParallelForTest : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int>> {};

TEST_P(ParallelForTest, CoversEveryIndexOnceInLargeEnoughRanges) {
  const auto [count, grain, num_threads] = GetParam();
  const Ranges ranges = RangesOf(count, grain, num_threads);
  int64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    EXPECT_EQ(begin, at);
    EXPECT_GT(end, begin);
    if (ranges.size() > 1) {
      EXPECT_GE(end - begin, grain);
    }
    at = end;
  }
  EXPECT_EQ(at, count);
  EXPECT_LE(static_cast<int>(ranges.size()), std::max(num_threads, 1));
  EXPECT_EQ(ranges, RangesOf(count, grain, num_threads));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ParallelForTest,
                         ::testing::Combine(::testing::Values(0, 1, 7, 8, 9, 16, 1000),
                                            ::testing::Values(0, 1, 8),
                                            ::testing::Values(0, 1, 2, 3, 8)));

TEST(ParallelForTest, DynamicVisitsEveryIndexOnce) {
  for (int num_threads : {1, 2, 5}) {
    for (int64_t count : {0, 1, 2, 100}) {
      std::vector<std::atomic<int>> visits(count);
      ParallelForDynamic(count, num_threads, [&](int64_t i) { visits[i].fetch_add(1); });
      for (const auto& n : visits) EXPECT_EQ(n.load(), 1);
    }
  }
}

TEST(ParallelForTest, ExceptionsReachTheCaller) {
  for (int num_threads : {1, 2}) {
    EXPECT_THROW(ParallelFor(2, 1, num_threads,
                             [](int64_t, int64_t) { throw std::runtime_error("part failed"); }),
                 std::runtime_error);
    EXPECT_THROW(ParallelForDynamic(3, num_threads,
                                    [](int64_t i) {
                                      if (i == 2) throw std::runtime_error("item failed");
                                    }),
                 std::runtime_error);
  }
}

TEST(ParallelForTest, NestedLoopsRunInOneThread) {
  std::atomic<int64_t> covered{0};
  ParallelForDynamic(4, 2, [&](int64_t) {
    ParallelFor(10, 1, 2, [&](int64_t begin, int64_t end) { covered += end - begin; });
  });
  EXPECT_EQ(covered, 40);
}

}  // namespace
}  // namespace meshfold
