#include "moe/balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshfold::moe {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;

TEST(CapacityTest, RoundsUp) {
  EXPECT_EQ(Capacity(1.0, 8, 1, 4), 2);
  EXPECT_EQ(Capacity(1.0, 9, 1, 4), 3);
  EXPECT_EQ(Capacity(1.25, 8, 2, 4), 5);
  EXPECT_EQ(Capacity(3.2, 5, 1, 4), 4);
}

TEST(CapacityTest, IsNotRaisedByTheBinaryFormOfTheFactor) {
  EXPECT_EQ(Capacity(1.1, 100, 2, 20), 11);  // 1.1 * 10 is 11.000000000000002
}

TEST(CapacityTest, ZeroFactorIsNoLimitAndAFewTokensStillGetARow) {
  EXPECT_EQ(Capacity(0.0, 1000, 8, 4), 0);
  EXPECT_EQ(Capacity(0.5, 0, 1, 4), 1);
}

// 6 tokens, top-2: 12 rows. f = (6, 3, 3, 0) / 12; c_e = weight * E * f_e / T = 4 f_e / 6.
TEST(BalanceCoefficientsTest, MatchesHandComputation) {
  EXPECT_THAT(BalanceCoefficients({6, 3, 3, 0}, 6, 1.0),
              ElementsAre(FloatEq(4.0f / 12), FloatEq(4.0f / 24), FloatEq(4.0f / 24), 0.0f));
  EXPECT_THAT(BalanceCoefficients({6, 3, 3, 0}, 6, 0.5),
              ElementsAre(FloatEq(4.0f / 24), FloatEq(4.0f / 48), FloatEq(4.0f / 48), 0.0f));
}

TEST(BalanceCoefficientsTest, EqualLoadAndUniformScoresGiveTheWeight) {
  double value = 0;
  for (float coefficient : BalanceCoefficients({5, 5, 5, 5}, 10, 0.3)) {
    value += 10 * 0.25 * coefficient;  // 10 tokens with probability 1/4 each
  }
  EXPECT_NEAR(value, 0.3, 1e-7);
}

TEST(BalanceCoefficientsTest, NoTokensGiveZeros) {
  EXPECT_THAT(BalanceCoefficients({0, 0, 0}, 0, 1.0), Each(0.0f));
  EXPECT_THAT(BalanceCoefficients({4, 0, 0}, 0, 1.0), Each(0.0f));  // tokens on other ranks only
}

// Mean load 3: expert 1 at the mean stays.
TEST(BiasStepsTest, MovesTowardsTheMean) {
  EXPECT_THAT(BiasSteps({5, 3, 1, 3}, 0.001), ElementsAre(-0.001f, 0.0f, 0.001f, 0.0f));
}

// Mean 7/3: nobody is at it, and 2 is below.
TEST(BiasStepsTest, ComparesWithTheExactMean) {
  EXPECT_THAT(BiasSteps({2, 2, 3}, 0.5), ElementsAre(0.5f, 0.5f, -0.5f));
}

TEST(LoadStatisticsTest, MatchesHandComputation) {
  LoadStatistics statistics = StatisticsOf({8, 0, 2, 6, 4});  // mean 4
  EXPECT_DOUBLE_EQ(statistics.max_over_mean, 2.0);
  EXPECT_DOUBLE_EQ(statistics.min, 0.0);
  EXPECT_DOUBLE_EQ(statistics.p50, 1.0);
  EXPECT_NEAR(statistics.p95, (6 + 0.8 * 2) / 4, 1e-12);  // 3.8 of the way through 0 2 4 6 8
}

TEST(LoadStatisticsTest, EvenNumberOfExpertsInterpolatesTheMedian) {
  EXPECT_DOUBLE_EQ(StatisticsOf({1, 3, 5, 7}).p50, 1.0);
  EXPECT_DOUBLE_EQ(StatisticsOf({0, 0, 4, 4}).p50, 1.0);
}

TEST(LoadStatisticsTest, NoRowsAndOneExpert) {
  EXPECT_DOUBLE_EQ(StatisticsOf({0, 0}).max_over_mean, 0.0);
  LoadStatistics one = StatisticsOf({7});
  EXPECT_DOUBLE_EQ(one.max_over_mean, 1.0);
  EXPECT_DOUBLE_EQ(one.p95, 1.0);
}

TEST(KeptRowsTest, EarlierRanksComeFirst) {
  const std::vector<std::vector<int64_t>> counts_RE = {{3, 0, 9}, {2, 0, 1}, {4, 5, 0}};
  EXPECT_EQ(KeptRows(counts_RE, 4),
            (std::vector<std::vector<int64_t>>{{3, 0, 4}, {1, 0, 0}, {0, 4, 0}}));
  EXPECT_EQ(KeptRows(counts_RE, 10), counts_RE);
  EXPECT_TRUE(KeptRows({}, 4).empty());
}

}  // namespace
}  // namespace meshfold::moe
