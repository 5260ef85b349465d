#include "comm/rank_order_sum.h"

#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

// Longer than a block, cut at odd places.
TEST(RankOrderSumTest, EqualsTheChainOfAdditionsWhereverItIsCut) {
  constexpr int64_t kLength = 5001;
  std::vector<std::vector<float>> parts(4, std::vector<float>(kLength));
  for (size_t r = 0; r < parts.size(); ++r) {
    for (size_t i = 0; i < parts[r].size(); ++i) {
      parts[r][i] =
          (r + i) % 2 == 0 ? 1e8f / static_cast<float>(i + 1) : -0.3f * static_cast<float>(r);
    }
  }
  std::vector<float> expected = parts[0];
  for (size_t r = 1; r < parts.size(); ++r) {
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += parts[r][i];
  }
  std::vector<const void*> in;
  for (const auto& part : parts) in.push_back(part.data());
  std::vector<float> cut(kLength, -1.0f), other(kLength, -1.0f);
  for (auto [begin, end] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 1}, {1, 2500}, {2500, kLength}}) {
    SumInRankOrder(DType::kF32, in, begin, end, {cut.data(), other.data()});
  }
  EXPECT_EQ(cut, expected);
  EXPECT_EQ(other, expected);
  SumInRankOrder(DType::kF32, in, 0, kLength, {parts[2].data()});
  EXPECT_EQ(parts[2], expected) << "an output that is one of the parts";
}

TEST(RankOrderSumTest, IntegersWrapAround) {
  const std::vector<int32_t> a = {std::numeric_limits<int32_t>::max(), 5}, b = {1, -7};
  std::vector<int32_t> sum(2);
  SumInRankOrder(DType::kI32, {a.data(), b.data()}, 0, 2, {sum.data()});
  EXPECT_EQ(sum, (std::vector<int32_t>{std::numeric_limits<int32_t>::min(), -2}));
}

TEST(RankOrderSumDeathTest, SixteenBitsAreStorage) {
  uint16_t x = 0;
  EXPECT_DEATH(SumInRankOrder(DType::kBF16, {&x}, 0, 1, {&x}), "sums of bf16 are not defined");
}

}  // namespace
}  // namespace meshfold::comm
