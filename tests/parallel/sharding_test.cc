// Layouts against their definition, rank by rank, over random grids: two ranks hold the same part
// when no placement that cuts tells them apart.
#include "parallel/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/rng.h"
#include "parallel/checkpoint_pieces.h"

namespace meshfold::parallel {
namespace {

// Numbers of a fixed sequence.
class Draw {
 public:
  explicit Draw(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  int64_t operator()(int64_t low, int64_t high) {  // in [low, high]
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return low + static_cast<int64_t>(state_ % static_cast<uint64_t>(high - low + 1));
  }

 private:
  uint64_t state_;
};

struct RandomCase {
  RankLayout ranks;
  Shape shape;
  Layout layout;
};

// A size-`size` axis cut into fewer, as many or more parts.
int64_t RandomParts(int64_t size, Draw& draw) {
  for (;;) {
    const int64_t parts = draw(1, 2 * size);
    if (parts % size == 0 || size % parts == 0) return parts;
  }
}

RandomCase MakeCase(uint64_t seed) {
  Draw draw(seed);
  ParallelSizes sizes{.data = draw(1, 3),
                      .tensor = draw(1, 4),
                      .pipeline = draw(1, 2),
                      .context = draw(1, 2),
                      .ulysses = draw(1, 2)};
  const int64_t stage = sizes.data * sizes.tensor * sizes.context * sizes.ulysses;
  do {
    sizes.expert = draw(1, stage);
  } while (stage % sizes.expert != 0);
  do {
    sizes.expert_tensor = draw(1, stage / sizes.expert);
  } while (stage / sizes.expert % sizes.expert_tensor != 0);
  RandomCase result{PlanRanks(sizes, stage * sizes.pipeline).value(), {}, {}};
  std::vector<int64_t> dims;
  for (int64_t d = draw(1, 3); d > 0; --d) dims.push_back(draw(0, 9));
  result.shape = Shape(dims);
  result.layout.view = draw(0, 1) == 0 ? "dense" : "expert";
  for (const comm::MeshAxis& axis : ViewOf(result.layout, result.ranks).axes()) {
    if (axis.name == "pp") continue;
    const int64_t choice = draw(0, 3);
    if (choice > 1) continue;
    result.layout.placements.push_back(
        {axis.name, choice == 0 ? Placement::Kind::kShard : Placement::Kind::kPartial,
         static_cast<int>(draw(0, result.shape.rank() - 1)), RandomParts(axis.size, draw)});
  }
  return result;
}

// Which run of neighbours along the placement's axis `rank` is in.
int64_t RunOf(const Placement& placement, const comm::RankGrid& grid, int64_t rank) {
  const int64_t size = grid.size(placement.axis);
  const int64_t ranks_a_part = std::max<int64_t>(1, size / placement.parts);
  return grid.coordinate(rank, placement.axis) / ranks_a_part;
}

// The runs of all placements of a kind.
std::vector<int64_t> RunsOf(Placement::Kind kind, const RandomCase& c, int64_t rank) {
  std::vector<int64_t> runs;
  for (const Placement& placement : c.layout.placements) {
    if (placement.kind != kind) continue;
    runs.push_back(RunOf(placement, ViewOf(c.layout, c.ranks), rank));
  }
  return runs;
}

TEST(PartOfTest, CutsCeilingsTheLastOnesShortOrEmpty) {
  for (int64_t size = 0; size <= 20; ++size) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      int64_t next = 0;
      for (int64_t index = 0; index < parts; ++index) {
        const Interval part = PartOf(size, parts, index);
        EXPECT_EQ(part.begin, next);
        EXPECT_EQ(part.count, std::min((size + parts - 1) / parts, size - next));
        next = part.begin + part.count;
      }
      EXPECT_EQ(next, size);
    }
  }
}

TEST(LocalBoxTest, CutsInTheOrderOfThePlacements) {
  const RankLayout ranks = PlanRanks({.data = 2, .tensor = 4}, 8).value();
  const Layout nested{
      "dense", {{"dp", Placement::Kind::kShard, 0, 2}, {"tp", Placement::Kind::kShard, 0, 4}}};
  // 10 rows: 5 for each of dp, of which 2, 2, 1 and none for each of tp.
  const std::vector<std::pair<int64_t, int64_t>> wanted = {{0, 2}, {2, 2}, {4, 1}, {5, 0},
                                                           {5, 2}, {7, 2}, {9, 1}, {10, 0}};
  for (int64_t rank = 0; rank < 8; ++rank) {
    const Box box = LocalBox({10, 3}, nested, ranks, rank).value();
    EXPECT_EQ(box.start, (std::vector<int64_t>{wanted[static_cast<size_t>(rank)].first, 0}));
    EXPECT_EQ(box.extent, (std::vector<int64_t>{wanted[static_cast<size_t>(rank)].second, 3}));
  }
}

TEST(LocalBoxTest, RefusesWhatDoesNotFit) {
  const RankLayout ranks = PlanRanks({.tensor = 4}, 4).value();
  auto message = [&](Placement placement) {
    absl::StatusOr<Box> box = LocalBox({6, 4}, {"dense", {placement}}, ranks, 0);
    EXPECT_EQ(box.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(box.status().message());
  };
  EXPECT_TRUE(absl::StrContains(message({"ep", Placement::Kind::kShard, 0, 4}), "no axis 'ep'"));
  EXPECT_TRUE(absl::StrContains(message({"tp", Placement::Kind::kShard, 2, 4}), "dim 2 of [6, 4]"));
  EXPECT_TRUE(absl::StrContains(message({"tp", Placement::Kind::kShard, 0, 3}),
                                "3 parts over the 4 ranks of axis 'tp'"));
  EXPECT_TRUE(absl::StrContains(message({"tp", Placement::Kind::kPartial, 0, 0}), "0 parts"));
}

// The first copies of a stage hold every element once; ranks hold the same box exactly when their
// runs agree (or, where sizes are uneven, when both hold nothing).
TEST(ShardingTest, FirstCopiesTileOnRandomGrids) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const RandomCase c = MakeCase(seed);
    const int64_t world = c.ranks.dense.world(), stages = c.ranks.dense.size("pp");
    for (int64_t stage = 0; stage < stages; ++stage) {
      CheckpointTensorInfo info;
      info.shape = c.shape;
      std::map<std::vector<int64_t>, std::vector<int64_t>> copies;  // by runs
      for (int64_t rank = stage * world / stages; rank < (stage + 1) * world / stages; ++rank) {
        copies[RunsOf(Placement::Kind::kShard, c, rank)].push_back(rank);
      }
      for (const auto& [runs, holders] : copies) {
        const Box box = LocalBox(c.shape, c.layout, c.ranks, holders[0]).value();
        for (int64_t rank : holders) {
          EXPECT_EQ(LocalBox(c.shape, c.layout, c.ranks, rank).value(), box);
          EXPECT_EQ(CopiesOf(c.layout, c.ranks, rank), holders);
          EXPECT_EQ(IsFirstCopy(c.layout, c.ranks, rank), rank == holders[0]);
        }
        CheckpointPiece piece;
        piece.start = box.start;
        piece.extent = box.extent;
        piece.flat_end = box.shape().numel();
        info.pieces.push_back(piece);
      }
      EXPECT_TRUE(CheckTiling(info).ok()) << CheckTiling(info);
      EXPECT_EQ(IsSharded(c.layout, c.ranks), copies.size() > 1);
    }
  }
}

// Ranks sum with those that differ from them along partial axes alone, within their run of each.
TEST(ShardingTest, SummingRanksOnRandomGrids) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const RandomCase c = MakeCase(seed);
    const comm::RankGrid& grid = ViewOf(c.layout, c.ranks);
    std::set<std::string> partial;
    for (const Placement& placement : c.layout.placements) {
      if (placement.kind == Placement::Kind::kPartial) partial.insert(placement.axis);
    }
    for (int64_t rank = 0; rank < grid.world(); ++rank) {
      std::vector<int64_t> wanted;
      for (int64_t other = 0; other < grid.world(); ++other) {
        bool sums = RunsOf(Placement::Kind::kPartial, c, other) ==
                    RunsOf(Placement::Kind::kPartial, c, rank);
        for (const comm::MeshAxis& axis : grid.axes()) {
          sums = sums && (partial.count(axis.name) > 0 ||
                          grid.coordinate(other, axis.name) == grid.coordinate(rank, axis.name));
        }
        if (sums) wanted.push_back(other);
      }
      EXPECT_EQ(SummingRanks(c.layout, c.ranks, rank), wanted);
    }
  }
}

}  // namespace
}  // namespace meshfold::parallel
