#include "moe/expert_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace meshfold::moe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> BlockSizes(int64_t num_experts, int64_t num_ranks) {
  std::vector<int64_t> sizes;
  int64_t next = 0;
  for (int64_t rank = 0; rank < num_ranks; ++rank) {
    ExpertBlock block = OwnedExperts(num_experts, num_ranks, rank);
    EXPECT_EQ(block.begin, next) << "rank " << rank;
    sizes.push_back(block.end - block.begin);
    next = block.end;
  }
  EXPECT_EQ(next, num_experts);
  return sizes;
}

TEST(OwnedExpertsTest, CeilingSplitWithShortAndEmptyLastBlocks) {
  EXPECT_THAT(BlockSizes(8, 4), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(BlockSizes(7, 3), ElementsAre(3, 3, 1));
  EXPECT_THAT(BlockSizes(5, 4), ElementsAre(2, 2, 1, 0));
  EXPECT_THAT(BlockSizes(2, 3), ElementsAre(1, 1, 0));
}

// 2 ranks, 3 experts.
PlanInput Input() { return {.counts_RE = {{4, 0, 1}, {2, 3, 0}}, .num_targets = 2}; }

// Half of rank 0's rows for expert 0 move to rank 1, which gets a copy of that expert.
ExpertPlan PlanWithCopy() {
  return {.home = {0, 0, 1},
          .groups = {{0, 1}, {2, 0}},
          .shares = {{0, 0, 0, 2}, {0, 0, 1, 2}, {0, 2, 1, 1}, {1, 0, 1, 2}, {1, 1, 0, 3}},
          .copies = {{.expert = 0, .from = 0, .to = 1}}};
}

TEST(ValidatePlanTest, AcceptsTravellingWeights) {
  EXPECT_TRUE(ValidatePlan(Input(), PlanWithCopy()).ok());
}

TEST(ValidatePlanTest, FindsRowsThatGoNowhereOrTwice) {
  ExpertPlan plan = PlanWithCopy();
  plan.shares.pop_back();
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("of the rows of expert 1 on source 1, 3 are left over"));
  plan = PlanWithCopy();
  plan.shares.push_back({0, 0, 0, 1});
  EXPECT_FALSE(ValidatePlan(Input(), plan).ok());
}

TEST(ValidatePlanTest, FindsRowsAtARankWithoutTheExpert) {
  ExpertPlan plan = PlanWithCopy();
  plan.shares[2].target = 0;
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("rows of expert 2 go to target 0, which does not compute it"));
}

TEST(ValidatePlanTest, FindsMissingAndNeedlessCopies) {
  ExpertPlan plan = PlanWithCopy();
  plan.copies.clear();
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("target 1 computes expert 0 without its weights"));
  plan = PlanWithCopy();
  plan.copies.push_back({.expert = 2, .from = 1, .to = 0});
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("expert 2 travels to target 0 without need"));
}

TEST(ValidatePlanTest, FindsExpertsThatHomeDoesNotCompute) {
  ExpertPlan plan = PlanWithCopy();
  plan.home[1] = 1;
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("expert 1 is not computed at its home 1"));
}

TEST(ValidatePlanTest, FindsPlansForOtherSizes) {
  EXPECT_FALSE(ValidatePlan({.counts_RE = {{4, 0, 1}}}, PlanWithCopy()).ok());
  ExpertPlan plan = PlanWithCopy();
  plan.shares[0].source = 2;
  EXPECT_THAT(std::string(ValidatePlan(Input(), plan).message()),
              HasSubstr("rows of expert 0 come from source 2"));
}

TEST(GroupRowsTest, SumsSourcesInGroupOrder) {
  EXPECT_THAT(GroupRows(PlanWithCopy(), 0).offsets, ElementsAre(0, 2, 5));
  EXPECT_THAT(GroupRows(PlanWithCopy(), 1).offsets, ElementsAre(0, 1, 5));
}

// Every registered planner, on counts that break careless ones.
class PlannerConformanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  ExpertPlan Plan(const PlanInput& input) {
    absl::StatusOr<ExpertPlan> plan = (*PlannerRegistry().Find(GetParam()))(input);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
};

TEST_P(PlannerConformanceTest, PlansAreValid) {
  const std::vector<std::vector<std::vector<int64_t>>> cases = {
      {{3, 1, 4, 1}},                                       // one rank
      {{0, 0, 0, 0}, {0, 0, 0, 0}},                         // no tokens at all
      {{7, 0, 0, 0}, {9, 0, 0, 0}},                         // one expert takes all
      {{1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {0, 0, 0, 0, 0}},  // uneven split, an idle source
      {{1, 1}, {1, 1}, {1, 1}, {1, 1}},                     // more ranks than experts
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const int64_t num_sources = static_cast<int64_t>(cases[i].size());
    // Fewer targets than sources: expert tensor parallelism.
    for (int64_t num_targets = 1; num_targets <= num_sources; ++num_targets) {
      if (num_sources % num_targets != 0) continue;
      PlanInput input{.counts_RE = cases[i], .num_targets = num_targets};
      absl::Status status = ValidatePlan(input, Plan(input));
      EXPECT_TRUE(status.ok()) << "case " << i << ", " << num_targets << " targets: " << status;
    }
  }
}

TEST_P(PlannerConformanceTest, RefusesInputsThatAreNoCounts) {
  Planner planner = *PlannerRegistry().Find(GetParam());
  EXPECT_EQ(planner({}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(planner({.counts_RE = {{1, 2}, {1}}, .num_targets = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(planner({.counts_RE = {{1, 2}, {1, 2}, {1, 2}}, .num_targets = 2}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Registered, PlannerConformanceTest,
                         ::testing::ValuesIn(PlannerRegistry().Names()),
                         [](const auto& test) { return test.param; });

TEST(StaticEpTest, RowsGoToTheOwnersAndWeightsStay) {
  ExpertPlan plan = *(*PlannerRegistry().Find("static_ep"))(
      {.counts_RE = {{1, 2, 3}, {0, 5, 0}}, .num_targets = 2});
  EXPECT_THAT(plan.home, ElementsAre(0, 0, 1));
  EXPECT_THAT(plan.groups, ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(plan.copies, IsEmpty());
  EXPECT_THAT(GroupRows(plan, 0).offsets, ElementsAre(0, 1, 8));
  EXPECT_THAT(GroupRows(plan, 1).offsets, ElementsAre(0, 3));
  EXPECT_EQ(plan.shares.size(), 4u) << "shares without rows";
}

}  // namespace
}  // namespace meshfold::moe
