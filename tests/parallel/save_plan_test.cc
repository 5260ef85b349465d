#include "parallel/save_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <utility>

#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

Copies Held(std::vector<int64_t> holders, int64_t bytes) {
  return {std::make_shared<const std::vector<int64_t>>(std::move(holders)), bytes};
}

TEST(AssignWritersTest, GivesTheLargestFirstToTheLeastLoadedHolder) {
  EXPECT_EQ(AssignWriters({}), std::vector<int64_t>());
  EXPECT_EQ(AssignWriters({Held({0, 1}, 5), Held({0, 1}, 9), Held({0, 1}, 4)}),
            (std::vector<int64_t>{1, 0, 1}));
  // What has one holder counts first.
  EXPECT_EQ(AssignWriters({Held({0, 1, 2}, 10), Held({0}, 3), Held({2}, 1)}),
            (std::vector<int64_t>{1, 0, 2}));
  EXPECT_EQ(AssignWriters({Held({3, 5}, 0), Held({3, 5}, 0)}), (std::vector<int64_t>{3, 3}));
}

TEST(AssignWritersTest, SharesWithinTheLargestTensor) {
  std::vector<Copies> boxes;
  int64_t total = 0;
  for (int64_t i = 0; i < 100; ++i) {
    boxes.push_back(Held({0, 1, 2, 3, 4, 5, 6}, i * 7919 % 101));
    total += boxes.back().bytes;
  }
  const std::vector<int64_t> writers = AssignWriters(boxes);
  std::map<int64_t, int64_t> bytes;
  for (size_t i = 0; i < boxes.size(); ++i) bytes[writers[i]] += boxes[i].bytes;
  for (const auto& [rank, sum] : bytes) EXPECT_NEAR(sum, total / 7, 101) << rank;
}

// Over many grids: of the ranks of a stage that hold a part exactly one writes it, and it is there.
TEST(PlanSaveTest, EveryPartHasOneWriter) {
  using Kind = Placement::Kind;
  const std::vector<SavedTensor> tensors = {
      {{12, 4}, {"dense", {{"tp", Kind::kShard, 0, 64}}}, 4},
      {{5, 4}, {"dense", {{"tp", Kind::kShard, 0, 2}, {"cp", Kind::kShard, 1, 2}}}, 2},
      {{5, 2, 8}, {"expert", {{"ep", Kind::kShard, 0, 64}, {"etp", Kind::kShard, 2, 64}}}, 4},
      {{100}, {}, 4},
      {{100}, {"expert", {}}, 4},
      {{0, 3}, {"dense", {{"tp", Kind::kShard, 0, 64}}}, 4},
      {{}, {}, 4},
      {{50}, {}, 4}};
  for (const ParallelSizes& sizes : {ParallelSizes{},
                                     {.tensor = 2},
                                     {.tensor = 4, .expert = 2, .pipeline = 2},
                                     {.expert = 4, .expert_tensor = 2},
                                     {.tensor = 2, .expert = 8, .context = 2}}) {
    const RankLayout ranks = PlanRanks(sizes, 16).value();
    std::vector<std::vector<bool>> writes;
    for (int64_t rank = 0; rank < 16; ++rank) {
      writes.push_back(PlanSave(tensors, ranks, rank).value());
    }
    for (int64_t rank = 0; rank < 16; ++rank) {
      for (size_t t = 0; t < tensors.size(); ++t) {
        const SavedTensor& tensor = tensors[t];
        const Box box = LocalBox(tensor.shape, tensor.layout, ranks, rank).value();
        int64_t writers = 0;
        for (int64_t other : CopiesOf(tensor.layout, ranks, rank)) {
          writers += writes[static_cast<size_t>(other)][t] ? 1 : 0;
        }
        if (tensor.shape.numel() > 0) {
          EXPECT_EQ(writers, box.shape().numel() > 0 ? 1 : 0) << t << " on " << rank;
        } else if (ranks.dense.coordinate(rank, "tp") == 0) {
          EXPECT_EQ(writers, 1);
        }
      }
    }
  }
}

TEST(PlanSaveTest, RefusesLayoutsThatDoNotFit) {
  const RankLayout ranks = PlanRanks({.tensor = 2}, 2).value();
  const std::vector<SavedTensor> tensors = {
      {{4}, {"dense", {{"tp", Placement::Kind::kShard, 1, 2}}}, 4}};
  EXPECT_EQ(PlanSave(tensors, ranks, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace meshfold::parallel
