#include "parallel/rank_layout.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::parallel {
namespace {

using Ranks = std::vector<int64_t>;

// Every layout of 48 ranks: a stage's ranks are the same in both views, and each rank has one place
// among the experts' shards of its stage.
TEST(RankLayoutTest, BothViewsCutTheSameRanks) {
  constexpr int64_t kWorld = 48;
  int fitting = 0;
  for (int64_t tensor : {1, 2, 3, 4}) {
    for (int64_t pipeline : {1, 2, 3}) {
      for (int64_t context : {1, 2}) {
        for (int64_t expert : {1, 2, 4, 8}) {
          for (int64_t expert_tensor : {1, 2}) {
            const ParallelSizes sizes{.tensor = tensor,
                                      .expert = expert,
                                      .expert_tensor = expert_tensor,
                                      .pipeline = pipeline,
                                      .context = context};
            const absl::StatusOr<RankLayout> layout = PlanRanks(sizes, kWorld);
            const bool fits = kWorld % (tensor * pipeline * context) == 0 &&
                              kWorld / pipeline % (expert * expert_tensor) == 0;
            ASSERT_EQ(layout.ok(), fits) << layout.status();
            if (!fits) continue;
            ++fitting;
            EXPECT_TRUE(comm::CheckSharedAxes(layout->dense, layout->expert, {"pp"}).ok());
            EXPECT_EQ(layout->dense.size("dp") * tensor * pipeline * context, kWorld);
            EXPECT_EQ(layout->expert.size("edp") * expert * expert_tensor * pipeline, kWorld);
            EXPECT_EQ(layout->dense.Groups({"dp", "cp", "ulysses", "tp"}),
                      layout->expert.Groups({"edp", "ep", "etp"}));
          }
        }
      }
    }
  }
  EXPECT_GT(fitting, 100);
}

// Tensor neighbours are the nearest ranks; experts fold over them.
TEST(RankLayoutTest, InnermostAxesAreTheNearestRanks) {
  const RankLayout layout = PlanRanks({.tensor = 2, .expert = 4, .context = 2}, 8).value();
  EXPECT_EQ(layout.dense.GroupOf(5, {"tp"}), (Ranks{4, 5}));
  EXPECT_EQ(layout.dense.GroupOf(5, {"cp"}), (Ranks{5, 7}));
  EXPECT_EQ(layout.dense.GroupOf(5, {"dp"}), (Ranks{1, 5}));
  EXPECT_EQ(layout.expert.GroupOf(5, {"ep"}), (Ranks{4, 5, 6, 7}));
}

TEST(RankLayoutTest, SizesBeyondAllRanksAreRefusedInWords) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const absl::Status status = PlanRanks({.tensor = most, .pipeline = most}, 8).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("does not make 8 ranks"));
}

}  // namespace
}  // namespace meshfold::parallel
