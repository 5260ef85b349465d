// Checkpoints have no topology: what ranks save on one layout, ranks on any other load, bit by bit.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "parallel/checkpoint_write.h"
#include "parallel/train_state.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/sharded_model.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::ShardedTraining;
using testing::WorldCase;
using testing::WorldCases;

class ShardedStateTest : public ScratchTest {
 protected:
  // All ranks of `world` save generation `generation` as step `step`; the error, if any.
  absl::Status Save(const WorldCase& world, int generation, int64_t step = 3,
                    const std::string& root = "root") {
    const RankLayout ranks = world.ranks();
    return comm::RunThreadWorld({.size = world.size}, [&](comm::Communicator& end) {
      ShardedTraining training(ranks, end.rank());
      training.Fill(generation);
      const ShardingContext sharding{end, ranks};
      CheckpointState state{step, {{"loader.sample", 40}}, "model: {}\n"};
      absl::StatusOr<std::string> path = SaveTrainingState(
          Path(root), training.model, training.optimizer.get(), state, {}, &sharding);
      MF_RETURN_IF_ERROR(path.status());
      EXPECT_EQ(*path, LatestCheckpoint(Path(root)).value());
      return absl::OkStatus();
    });
  }

  // All ranks of `world` load the latest checkpoint and find their parts of `generation`.
  absl::Status Load(const WorldCase& world, int generation, const std::string& root = "root") {
    const RankLayout ranks = world.ranks();
    const std::string path = LatestCheckpoint(Path(root)).value();
    return comm::RunThreadWorld({.size = world.size}, [&](comm::Communicator& end) {
      ShardedTraining training(ranks, end.rank());
      MF_ASSIGN_OR_RETURN(CheckpointState state,
                          LoadTrainingState(path, training.model, training.optimizer.get()));
      EXPECT_EQ(state.integers, (std::map<std::string, int64_t>{{"loader.sample", 40}}));
      training.ExpectFilled(generation);
      return absl::OkStatus();
    });
  }

  testing::ScopedTestContext context_;
};

TEST_F(ShardedStateTest, LoadsOnEveryLayoutWhatWasSavedOnAnyOther) {
  for (const WorldCase& saved : WorldCases()) {
    MF_ASSERT_OK(Save(saved, 1));
    for (const WorldCase& loaded : WorldCases()) {
      SCOPED_TRACE(absl::StrCat(saved.name, " to ", loaded.name));
      MF_EXPECT_OK(Load(loaded, 1));
    }
  }
}

TEST_F(ShardedStateTest, WritesTheBytesOfALoneProcessInAWorldOfOne) {
  const WorldCase one = WorldCases()[0];
  MF_ASSERT_OK(Save(one, 1));
  ShardedTraining training(one.ranks());
  training.Fill(1);
  absl::StatusOr<std::string> alone =
      SaveTrainingState(Path("alone"), training.model, training.optimizer.get(),
                        {3, {{"loader.sample", 40}}, "model: {}\n"}, {});
  MF_ASSERT_OK(alone);
  const std::string together = LatestCheckpoint(Path("root")).value();
  const std::vector<std::string> names = ListDirectory(*alone).value();
  EXPECT_EQ(names,
            (std::vector<std::string>{"config.yaml", "index.json", "shard-00000.safetensors"}));
  EXPECT_EQ(ListDirectory(together).value(), names);
  for (const std::string& name : names) {
    EXPECT_EQ(ReadFile(JoinPath(*alone, name)).value(), ReadFile(JoinPath(together, name)).value());
  }
}

TEST_F(ShardedStateTest, WritesEveryElementOnceAndSpreadsThem) {
  for (const WorldCase& world : WorldCases()) {
    SCOPED_TRACE(world.name);
    MF_ASSERT_OK(Save(world, 1));
    absl::StatusOr<Checkpoint> checkpoint =
        Checkpoint::Open(LatestCheckpoint(Path("root")).value());
    MF_ASSERT_OK(checkpoint);
    std::map<std::string, int64_t> bytes;  // by file
    int64_t total = 0, written = 0;
    for (const auto& [name, info] : checkpoint->tensors()) {
      total += info.shape.numel() * SizeOf(info.dtype);
      for (const CheckpointPiece& piece : info.pieces) {
        EXPECT_GT(piece.flat_end, 0) << name;
        const int64_t size = (piece.flat_end - piece.flat_begin) * SizeOf(info.dtype);
        bytes[piece.file] += size;
        written += size;
      }
    }
    EXPECT_EQ(written, total);
    EXPECT_EQ(bytes.size(), static_cast<size_t>(world.size));
    if (std::string(world.name) != "data 2") continue;
    // All is replicated: halves, to within the largest tensor.
    EXPECT_NEAR(static_cast<double>(bytes[ShardName(0)]), static_cast<double>(total) / 2, 5 * 1024);
  }
}

TEST_F(ShardedStateTest, SavesTheStagesOfAPipeline) {
  MF_ASSERT_OK(Save({"pipeline", 4, {.tensor = 2, .pipeline = 2}}, 1));
  MF_EXPECT_OK(Load(WorldCases()[0], 1));
  MF_EXPECT_OK(Load(WorldCases()[4], 1));
}

TEST_F(ShardedStateTest, StartsTheOptimizerOfPartsFromConvertedWeights) {
  ShardedTraining source(WorldCases()[0].ranks());
  source.Fill(1);
  absl::StatusOr<std::string> path =
      SaveTrainingState(Path("root"), source.model, nullptr, {.step = 0}, {});
  MF_ASSERT_OK(path);
  const RankLayout ranks = WorldCases()[5].ranks();
  for (int64_t rank = 0; rank < 4; ++rank) {
    ShardedTraining training(ranks, rank);
    training.Fill(2);
    MF_ASSERT_OK(LoadTrainingState(*path, training.model, training.optimizer.get()));
    EXPECT_EQ(training.optimizer->num_steps(), 0);
    for (const StateTensor& state : training.State()) {
      const bool is_moment = absl::StartsWith(state.name, "optimizer/m/");
      const bool is_master = absl::StartsWith(state.name, "optimizer/master/");
      StateTensor weight = state;
      weight.name = "model/" + state.parameter->name;
      weight.tensor = state.parameter->value.data();
      const Tensor wanted = ShardedTraining::Wanted(weight, 1);
      if (is_master || weight.name == state.name) {
        testing::ExpectClose(testing::WithPadding(state.tensor, testing::Padding::kNone), wanted, 0,
                             state.name);
      } else if (is_moment) {
        const std::vector<float> values = ToVector<float>(state.tensor);
        EXPECT_EQ(values, std::vector<float>(values.size())) << state.name;
      }
    }
  }
}

TEST_F(ShardedStateTest, RefusesPartsWithoutTheOtherRanks) {
  ShardedTraining training(WorldCases()[2].ranks(), 1);
  EXPECT_TRUE(FailsWith(SaveTrainingState(Path("root"), training.model, nullptr, {.step = 1}, {}),
                        absl::StatusCode::kInvalidArgument,
                        "'model/embedding' is the part [6:11, 0:6] of [11, 6]"));
}

// One rank's mistake before anything is written is an error everywhere.
TEST_F(ShardedStateTest, RefusesOnAllRanksAPartThatIsNotItsLayouts) {
  const RankLayout ranks = WorldCases()[2].ranks();
  std::vector<absl::Status> results(2);
  MF_ASSERT_OK(comm::RunThreadWorld({.size = 2}, [&](comm::Communicator& end) {
    ShardedTraining training(ranks, end.rank());
    if (end.rank() == 1) {
      training.model.VisitParameters([](Parameter& parameter) {
        if (parameter.name == "column") parameter.layout = Layout();
      });
    }
    const ShardingContext sharding{end, ranks};
    results[static_cast<size_t>(end.rank())] =
        SaveTrainingState(Path("root"), training.model, nullptr, {.step = 1}, {}, &sharding)
            .status();
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) {
    EXPECT_TRUE(FailsWith(result, absl::StatusCode::kInvalidArgument,
                          "rank 1: [Checkpoint] 'model/column' is the part [3:5, 0:256], its "
                          "layout says [0:5, 0:256]"));
  }
  EXPECT_EQ(ListDirectory(Path("root")).value(), std::vector<std::string>());
}

// Not left out in silence.
TEST_F(ShardedStateTest, RefusesOnAllRanksAParameterWithoutAValue) {
  const RankLayout ranks = WorldCases()[2].ranks();
  std::vector<absl::Status> results(2);
  MF_ASSERT_OK(comm::RunThreadWorld({.size = 2}, [&](comm::Communicator& end) {
    testing::ShardedModel model(ranks, end.rank());
    const ShardingContext sharding{end, ranks};
    results[static_cast<size_t>(end.rank())] =
        SaveTrainingState(Path("root"), model, nullptr, {.step = 1}, {}, &sharding).status();
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) {
    EXPECT_TRUE(FailsWith(result, absl::StatusCode::kInvalidArgument, "' is not in host memory"));
  }
}

// The pieces do not tile: two ranks that disagree about who holds what.
TEST_F(ShardedStateTest, RefusesOnAllRanksWhatDoesNotTile) {
  const RankLayout cut = WorldCases()[2].ranks(), replicated = WorldCases()[1].ranks();
  std::vector<absl::Status> results(2);
  MF_ASSERT_OK(Save(WorldCases()[2], 1));
  MF_ASSERT_OK(comm::RunThreadWorld({.size = 2}, [&](comm::Communicator& end) {
    const RankLayout& ranks = end.rank() == 0 ? cut : replicated;
    ShardedTraining training(ranks, end.rank());
    const ShardingContext sharding{end, ranks};
    results[static_cast<size_t>(end.rank())] =
        SaveTrainingState(Path("root"), training.model, nullptr, {.step = 4}, {}, &sharding)
            .status();
    return absl::OkStatus();
  }));
  for (const absl::Status& result : results) {
    EXPECT_TRUE(FailsWith(result, absl::StatusCode::kInvalidArgument, "rank 0: [Checkpoint] "));
    EXPECT_EQ(result.message(), results[0].message());
  }
  EXPECT_EQ(ListDirectory(Path("root")).value(),
            (std::vector<std::string>{"latest", "step_00000003"}));
}

TEST_F(ShardedStateTest, NamesTheShardThatIsDamagedOrMissing) {
  const WorldCase world = WorldCases()[5];
  MF_ASSERT_OK(Save(world, 1));
  const std::string path = LatestCheckpoint(Path("root")).value();
  const std::string shard = JoinPath(path, ShardName(3)), bytes = ReadFile(shard).value();
  std::string damaged = bytes;
  damaged.back() ^= 1;
  MF_ASSERT_OK(WriteFile(shard, damaged));
  EXPECT_TRUE(FailsWith(Load(WorldCases()[0], 1), absl::StatusCode::kDataLoss, shard));
  MF_ASSERT_OK(RemoveTree(shard));
  EXPECT_TRUE(FailsWith(Load(WorldCases()[0], 1), absl::StatusCode::kNotFound, shard));
  MF_ASSERT_OK(WriteFile(shard, bytes));
  MF_EXPECT_OK(Load(WorldCases()[0], 1));
}

}  // namespace
}  // namespace meshfold::parallel
