#include "tests/reference/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Ids;
using reference::RoutingConfig;
using reference::Vec;
using ::testing::ElementsAre;
using testing::ForEachVariant;
using testing::MakeIds;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomIds;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

struct SelectCase {
  int64_t tokens;
  RoutingConfig config;
  bool has_bias = false;
  bool has_ties = false;
};

class SelectExpertsTest : public ::testing::TestWithParam<SelectCase> {
 protected:
  // Whole numbers tie often; normals practically never.
  Tensor Scores(Padding padding) const {
    const Shape shape = {GetParam().tokens, GetParam().config.num_experts};
    if (!GetParam().has_ties) return RandomTensor("scores", shape, {.padding = padding});
    const std::vector<double> values = ToVector<double>(RandomIds("scores", shape, 0, 4));
    return MakeTensor(values, shape, DType::kF32, padding);
  }
  Tensor Bias() const {
    return GetParam().has_bias ? RandomTensor("bias", {GetParam().config.num_experts}) : Tensor();
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, SelectExpertsTest,
                         ::testing::Values(SelectCase{0, {8, 2}}, SelectCase{3, {1, 1}},
                                           SelectCase{7, {5, 5}}, SelectCase{1001, {32, 2}},
                                           SelectCase{301, {128, 8}, true},
                                           SelectCase{101, {512, 16}},
                                           SelectCase{301, {32, 4}, false, true},
                                           SelectCase{301, {256, 8, 8, 4}, true},
                                           SelectCase{301, {32, 6, 4, 2}, false, true},
                                           SelectCase{51, {8, 3, 8, 3}, true}));

TEST_P(SelectExpertsTest, MatchesAFullSort) {
  const RoutingConfig& config = GetParam().config;
  ForEachVariant(
      [&](Padding padding) {
        SelectExpertsArgs args;
        args.scores = Scores(padding);
        args.bias = Bias();
        args.num_groups = config.num_groups;
        args.top_k_groups = config.top_k_groups;
        args.ids = UnwrittenTensor({GetParam().tokens, config.top_k}, DType::kI32, padding);
        CurrentBackend().SelectExperts(args);
        return std::vector<Tensor>{args.ids};
      },
      [&](const std::vector<Tensor>& out) {
        // Biased scores as the kernel adds them, in f32: a tie there is a tie here.
        Vec scores = ToVector<double>(Scores(Padding::kNone));
        if (GetParam().has_bias) {
          const std::vector<float> bias = ToVector<float>(Bias());
          for (size_t i = 0; i < scores.size(); ++i) {
            scores[i] = static_cast<float>(scores[i]) + bias[i % bias.size()];
          }
        }
        EXPECT_EQ(ToVector<int32_t>(out[0]), reference::SelectExperts(scores, {}, config));
      });
}

// Group scores 1 + 1, 3 + (-5), 0 + 0, 0.6 + 0.6: the largest single score loses.
TEST(SelectExpertsEdgeTest, GroupsCompeteByTheirTwoBest) {
  ScopedTestContext context;
  SelectExpertsArgs args;
  args.scores = MakeTensor({1, 1, 3, -5, 0, 0, 0.6, 0.6}, {1, 8});
  args.num_groups = 4;
  args.top_k_groups = 2;
  args.ids = UnwrittenTensor({1, 3}, DType::kI32);
  context.backend().SelectExperts(args);
  EXPECT_THAT(ToVector<int32_t>(args.ids), ElementsAre(0, 1, 6));
}

TEST(SelectExpertsEdgeTest, NaNStillGivesDistinctExperts) {
  ScopedTestContext context;
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = HUGE_VAL;
  SelectExpertsArgs args;
  args.scores = MakeTensor({nan, nan, nan, nan, nan, 1, -inf, 2, nan, nan, 3, 4}, {3, 4});
  args.ids = UnwrittenTensor({3, 3}, DType::kI32);
  context.backend().SelectExperts(args);
  EXPECT_THAT(ToVector<int32_t>(args.ids), ElementsAre(0, 1, 2, 3, 1, 0, 3, 2, 0));
}

TEST(SelectExpertsEdgeTest, MoreThanTheGroupsHoldIsABug) {
  ScopedTestContext context;
  SelectExpertsArgs args;
  args.scores = RandomTensor("s", {1, 8});
  args.num_groups = 4;
  args.top_k_groups = 1;
  args.ids = UnwrittenTensor({1, 3}, DType::kI32);
  EXPECT_DEATH(context.backend().SelectExperts(args), "3 against 2");
}

struct SortCase {
  int64_t tokens, top_k, experts;
  int64_t limit;  // of expert 0; later ones keep a row more, in turns of 3. 0: none
  bool has_padding_tokens = false;
};

class SortByExpertTest : public ::testing::TestWithParam<SortCase> {
 protected:
  // Distinct experts a token, some slots without one (-1).
  Tensor ChosenIds(Padding padding) const {
    const SortCase& c = GetParam();
    std::vector<int32_t> ids;
    const std::vector<int32_t> start =
        ToVector<int32_t>(RandomIds("start", {c.tokens}, 0, static_cast<int32_t>(c.experts)));
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t k = 0; k < c.top_k; ++k) {
        const int64_t expert = (start[t] * start[t] / c.experts + k * 7) % c.experts;
        ids.push_back((t + k) % 11 == 5 ? -1 : static_cast<int32_t>(expert));
      }
    }
    return MakeIds(ids, {c.tokens, c.top_k}, padding);
  }
  std::vector<int64_t> Limits() const {
    std::vector<int64_t> limits;
    for (int64_t e = 0; GetParam().limit > 0 && e < GetParam().experts; ++e) {
      limits.push_back(GetParam().limit + e % 3);
    }
    return limits;
  }
  std::vector<int> Valid() const {
    std::vector<int> valid;
    for (int64_t t = 0; t < GetParam().tokens; ++t) valid.push_back(t % 4 != 1);
    return valid;
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, SortByExpertTest,
                         ::testing::Values(SortCase{0, 2, 4, 0}, SortCase{1, 1, 1, 0},
                                           SortCase{9, 2, 8, 0}, SortCase{100, 3, 16, 7},
                                           SortCase{100, 3, 16, 7, true},
                                           SortCase{501, 8, 64, 50, true}));

TEST_P(SortByExpertTest, MatchesTheReference) {
  const SortCase& c = GetParam();
  const std::vector<int> valid = c.has_padding_tokens ? Valid() : std::vector<int>();
  const std::vector<int64_t> limits = Limits();
  ForEachVariant(
      [&](Padding padding) {
        SortByExpertArgs args;
        args.ids = ChosenIds(padding);
        if (c.has_padding_tokens) {
          args.valid = MakeTensor(Vec(valid.begin(), valid.end()), {c.tokens}, DType::kU8);
        }
        args.num_experts = c.experts;
        args.limits = limits;
        args.counts = UnwrittenTensor({c.experts}, DType::kI32);
        args.routed = UnwrittenTensor({c.experts}, DType::kI32);
        args.row_to_slot = UnwrittenTensor({c.tokens * c.top_k}, DType::kI32);
        args.token_rows = UnwrittenTensor({c.tokens, c.top_k}, DType::kI32, padding);
        CurrentBackend().SortByExpert(args);
        return std::vector<Tensor>{args.counts, args.routed, args.row_to_slot, args.token_rows};
      },
      [&](const std::vector<Tensor>& out) {
        const auto expected = reference::SortByExpert(ToVector<int32_t>(ChosenIds(Padding::kNone)),
                                                      c.top_k, c.experts, limits, valid);
        EXPECT_EQ(ToVector<int32_t>(out[0]), expected.counts);
        EXPECT_EQ(ToVector<int32_t>(out[1]), expected.routed);
        EXPECT_EQ(ToVector<int32_t>(out[2]), expected.row_to_slot);
        EXPECT_EQ(ToVector<int32_t>(out[3]), expected.token_rows);
      });
}

SortByExpertArgs Sorted(const std::vector<int32_t>& ids, const Shape& shape, int64_t experts,
                        const std::vector<int64_t>& limits) {
  SortByExpertArgs args;
  args.ids = MakeIds(ids, shape);
  args.num_experts = experts;
  args.limits = limits;
  args.counts = UnwrittenTensor({experts}, DType::kI32);
  args.routed = UnwrittenTensor({experts}, DType::kI32);
  args.row_to_slot = UnwrittenTensor({shape.numel()}, DType::kI32);
  args.token_rows = UnwrittenTensor(shape, DType::kI32);
  CurrentBackend().SortByExpert(args);
  args.limits = {};
  return args;
}

// Known fault elsewhere: tokens past the capacity were kept and indexing failed.
TEST(SortByExpertEdgeTest, FifthTokenOfAFullExpertIsDropped) {
  ScopedTestContext context;
  const SortByExpertArgs sorted = Sorted({0, 0, 0, 0, 0}, {5, 1}, 4, {4, 4, 4, 4});
  EXPECT_THAT(ToVector<int32_t>(sorted.counts), ElementsAre(4, 0, 0, 0));
  EXPECT_THAT(ToVector<int32_t>(sorted.routed), ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(ToVector<int32_t>(sorted.row_to_slot), ElementsAre(0, 1, 2, 3, -1));
  EXPECT_THAT(ToVector<int32_t>(sorted.token_rows), ElementsAre(0, 1, 2, 3, -1));
}

// What a receiver of tokens sorts: experts of other ranks and dropped copies are negative.
TEST(SortByExpertEdgeTest, NegativeIdsGetNoRows) {
  ScopedTestContext context;
  const SortByExpertArgs sorted = Sorted({-1, 1, 0, -1, -1, -1, 1, 0}, {4, 2}, 2, {1, 2});
  EXPECT_THAT(ToVector<int32_t>(sorted.counts), ElementsAre(1, 2));
  EXPECT_THAT(ToVector<int32_t>(sorted.routed), ElementsAre(2, 2));
  EXPECT_THAT(ToVector<int32_t>(sorted.row_to_slot), ElementsAre(2, 1, 6, -1, -1, -1, -1, -1));
  EXPECT_THAT(ToVector<int32_t>(sorted.token_rows), ElementsAre(1, -1, 0, -1, -1, -1, 2, -1));
}

// The best expert comes first in ids; a token's rows come by expert.
TEST(SortByExpertEdgeTest, TokenRowsAscend) {
  ScopedTestContext context;
  const SortByExpertArgs sorted = Sorted({2, 0, 1, 2}, {2, 2}, 3, {});
  EXPECT_THAT(ToVector<int32_t>(sorted.row_to_slot), ElementsAre(1, 2, 0, 3));
  EXPECT_THAT(ToVector<int32_t>(sorted.token_rows), ElementsAre(0, 2, 1, 3));
}

TEST(SortByExpertEdgeTest, UnknownExpertIsABug) {
  ScopedTestContext context;
  EXPECT_DEATH(Sorted({0, 4}, {2, 1}, 4, {}), "4 against 4.*at token 1");
}

}  // namespace
}  // namespace meshfold
