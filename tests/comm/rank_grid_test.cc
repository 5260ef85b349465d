// Groups of ranks against their definition, coordinate by coordinate, and against the published
// example of folded expert groups.
#include "comm/rank_grid.h"

#include <map>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ranks = std::vector<int64_t>;

RankGrid Grid(std::vector<MeshAxis> axes) {
  int64_t world = 1;
  for (const MeshAxis& axis : axes) world *= axis.size;
  return RankGrid::Create(std::move(axes), world).value();
}

// Coordinates by counting up like an odometer, innermost first.
std::vector<std::map<std::string, int64_t>> AllCoordinates(const std::vector<MeshAxis>& axes) {
  std::vector<std::map<std::string, int64_t>> all;
  std::map<std::string, int64_t> at;
  for (const MeshAxis& axis : axes) at[axis.name] = 0;
  for (bool is_over = false; !is_over;) {
    all.push_back(at);
    is_over = true;
    for (size_t i = axes.size(); i-- > 0 && is_over;) {
      if (++at[axes[i].name] < axes[i].size) is_over = false;
      if (is_over) at[axes[i].name] = 0;
    }
  }
  return all;
}

// Two ranks are in one group over `axes` when they agree in all other coordinates.
Ranks GroupByDefinition(const std::vector<std::map<std::string, int64_t>>& coordinates, size_t rank,
                        const std::vector<std::string>& axes) {
  Ranks group;
  for (size_t other = 0; other < coordinates.size(); ++other) {
    bool is_in = true;
    for (const auto& [name, value] : coordinates[rank]) {
      const bool is_free = std::find(axes.begin(), axes.end(), name) != axes.end();
      if (!is_free && coordinates[other].at(name) != value) is_in = false;
    }
    if (is_in) group.push_back(static_cast<int64_t>(other));
  }
  return group;
}

void CheckGrid(const std::vector<MeshAxis>& axes) {
  const RankGrid grid = Grid(axes);
  const auto coordinates = AllCoordinates(axes);
  ASSERT_EQ(static_cast<int64_t>(coordinates.size()), grid.world());
  for (size_t subset = 0; subset < size_t{1} << axes.size(); ++subset) {
    std::vector<std::string> chosen;  // innermost first: the order must not matter
    for (size_t i = axes.size(); i-- > 0;) {
      if (subset >> i & 1) chosen.push_back(axes[i].name);
    }
    const std::vector<Ranks> groups = grid.Groups(chosen);
    std::map<Ranks, int64_t> seen;
    for (int64_t rank = 0; rank < grid.world(); ++rank) {
      const Ranks expected = GroupByDefinition(coordinates, static_cast<size_t>(rank), chosen);
      ASSERT_EQ(grid.GroupOf(rank, chosen), expected) << grid.ToString() << " rank " << rank;
      ASSERT_EQ(groups[static_cast<size_t>(grid.GroupIndex(rank, chosen))], expected);
      ASSERT_EQ(expected[static_cast<size_t>(grid.RankInGroup(rank, chosen))], rank);
      ASSERT_EQ(static_cast<int64_t>(expected.size()), grid.GroupSize(chosen));
      seen.emplace(expected, 0);
      for (const MeshAxis& axis : axes) {
        ASSERT_EQ(grid.coordinate(rank, axis.name),
                  coordinates[static_cast<size_t>(rank)].at(axis.name));
      }
    }
    // A map orders groups by their first ranks, as Groups must.
    std::vector<Ranks> ordered;
    for (const auto& [group, unused] : seen) ordered.push_back(group);
    ASSERT_EQ(groups, ordered);
  }
}

TEST(RankGridTest, GroupsFollowTheDefinitionForHundredsOfShapes) {
  std::minstd_rand random(1);
  int checked = 0;
  while (checked < 300) {
    std::vector<MeshAxis> axes = {{"pp"}, {"dp"}, {"cp"}, {"ulysses"}, {"tp"}};
    std::shuffle(axes.begin(), axes.end(), random);
    axes.resize(1 + random() % axes.size());
    int64_t world = 1;
    for (MeshAxis& axis : axes) {
      axis.size = 1 + static_cast<int64_t>(random() % 4);
      world *= axis.size;
    }
    if (world > 64) continue;
    CheckGrid(axes);
    ++checked;
  }
}

// 16 ranks, TP 2, CP 2, DP 2, PP 2; experts ETP 1, EP 4, EDP 2 (Megatron Core's parallel folding,
// Liu et al. 2025): an expert group spans the tensor and the context neighbours.
TEST(RankGridTest, ExpertsFoldOverTensorAndContextRanks) {
  const RankGrid dense = Grid({{"pp", 2}, {"dp", 2}, {"cp", 2}, {"tp", 2}});
  EXPECT_EQ(dense.GroupOf(0, {"tp"}), (Ranks{0, 1}));
  EXPECT_EQ(dense.GroupOf(4, {"cp"}), (Ranks{4, 6}));
  EXPECT_EQ(dense.GroupOf(7, {"dp"}), (Ranks{3, 7}));
  EXPECT_EQ(dense.GroupOf(5, {"dp", "cp"}), (Ranks{1, 3, 5, 7}));
  EXPECT_EQ(dense.GroupOf(9, {"pp"}), (Ranks{1, 9}));
  const RankGrid expert = Grid({{"pp", 2}, {"edp", 2}, {"ep", 4}, {"etp", 1}});
  EXPECT_THAT(expert.Groups({"ep"}), ElementsAre(Ranks{0, 1, 2, 3}, Ranks{4, 5, 6, 7},
                                                 Ranks{8, 9, 10, 11}, Ranks{12, 13, 14, 15}));
  EXPECT_EQ(expert.GroupOf(5, {"edp"}), (Ranks{1, 5}));
  EXPECT_TRUE(CheckSharedAxes(dense, expert, {"pp"}).ok());
  const absl::Status differs =
      CheckSharedAxes(dense, Grid({{"edp", 2}, {"pp", 2}, {"ep", 4}, {"etp", 1}}), {"pp"});
  EXPECT_EQ(differs.message(),
            "mesh: axis pp makes other groups in pp 2 x dp 2 x cp 2 x tp 2 than in edp 2 x pp 2 x "
            "ep 4 x etp 1");
}

TEST(RankGridTest, SizesThatDoNotFitAreNamed) {
  const auto message = [](std::vector<MeshAxis> axes, int64_t world) {
    return std::string(RankGrid::Create(std::move(axes), world).status().message());
  };
  EXPECT_EQ(message({{"dp", 3}, {"tp", 2}}, 8), "mesh: dp 3 x tp 2 does not make 8 ranks");
  EXPECT_EQ(message({{"dp", 2}, {"tp", 2}}, 1), "mesh: dp 2 x tp 2 does not make 1 rank");
  EXPECT_EQ(message({{"dp", 0}}, 1), "mesh: axis dp has size 0, must be at least 1");
  EXPECT_EQ(message({{"dp", 1}, {"dp", 1}}, 1), "mesh: two axes are named dp");
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(message({{"dp", huge}, {"tp", huge}}, 2), HasSubstr("does not make 2 ranks"));
}

TEST(RankGridTest, AHundredThousandRanksOnPaper) {
  const RankGrid grid = Grid({{"pp", 10}, {"dp", 1250}, {"cp", 1}, {"tp", 8}});
  EXPECT_EQ(grid.world(), 100000);
  EXPECT_EQ(grid.Groups({"dp"}).size(), 80u);
  EXPECT_EQ(grid.GroupOf(99999, {"tp"}),
            (Ranks{99992, 99993, 99994, 99995, 99996, 99997, 99998, 99999}));
}

}  // namespace
}  // namespace meshfold::comm
