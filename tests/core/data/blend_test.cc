#include "core/data/blend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/io/json.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

TEST(BlendTest, ChoosesAsMegatronDoes) {
  auto cases = ReadJsonFile("tests/core/data/testdata/blends.json");
  MF_ASSERT_OK(cases);
  ASSERT_EQ(cases->size(), 5u);
  for (const auto& entry : *cases) {
    auto blend = Blend::Create(entry["weights"].get<std::vector<double>>());
    MF_ASSERT_OK(blend);
    for (size_t k = 0; k < entry["datasets"].size(); ++k) {
      BlendedSample expected = {entry["datasets"][k].get<int>(),
                                entry["samples"][k].get<int64_t>()};
      EXPECT_EQ(blend->At(k), expected) << entry["weights"] << " sample " << k;
    }
  }
}

TEST(BlendTest, AnyOrderOfAskingGivesTheSame) {
  std::vector<double> weights = {0.55, 0.3, 0.15};
  auto ascending = Blend::Create(weights), jumping = Blend::Create(weights);
  MF_ASSERT_OK(ascending);
  MF_ASSERT_OK(jumping);
  std::vector<BlendedSample> samples;
  for (int64_t k = 0; k < 3 * Blend::kStride; ++k) samples.push_back(ascending->At(k));
  for (int64_t k : {2 * Blend::kStride + 5, int64_t{0}, Blend::kStride, Blend::kStride - 1,
                    3 * Blend::kStride - 1, int64_t{17}, 2 * Blend::kStride}) {
    EXPECT_EQ(jumping->At(k), samples[k]) << k;
    EXPECT_EQ(ascending->At(k), samples[k]) << k;
  }
}

TEST(BlendTest, SharesAreExactToASample) {
  auto blend = Blend::Create({5, 3, 2});
  MF_ASSERT_OK(blend);
  std::vector<int64_t> counts(3);
  for (int64_t k = 0; k < 1000; ++k) {
    BlendedSample sample = blend->At(k);
    EXPECT_EQ(sample.sample, counts[sample.dataset]) << "samples of a dataset count up";
    ++counts[sample.dataset];
  }
  EXPECT_EQ(counts, std::vector<int64_t>({500, 300, 200}));
}

TEST(BlendTest, RefusesWeightsThatAreNotPositive) {
  auto refused = [](std::vector<double> weights, absl::string_view reason) {
    EXPECT_TRUE(FailsWith(Blend::Create(weights), absl::StatusCode::kInvalidArgument, reason));
  };
  refused({}, "no dataset");
  refused({1, 0}, "dataset 1 is 0");
  refused({-1}, "dataset 0 is -1");
  refused({1, NAN}, "dataset 1 is nan");
  refused({INFINITY}, "dataset 0 is inf");
  refused({std::numeric_limits<double>::max(), std::numeric_limits<double>::max()}, "overflows");
}

}  // namespace
}  // namespace meshfold
