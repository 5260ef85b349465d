// Nothing is lost when many ranks write: whatever rank is killed or finds its disk full, at any of
// its system calls, all ranks hear of it, and the earlier checkpoint stays whole and the latest.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "parallel/checkpoint_write.h"
#include "parallel/train_state.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/failing_system_calls.h"
#include "tests/parallel/sharded_model.h"
#include "tests/testing/scoped_test_context.h"

namespace meshfold::parallel {
namespace {

using testing::PlanSystemCalls;
using testing::ShardedTraining;
using testing::SystemCallTrace;
using testing::WorldCase;

const WorldCase kWorld = {"tensor 2", 4, {.tensor = 2, .expert = 2}};

class ShardedCrashTest : public ScratchTest {
 protected:
  // What each rank gets from saving `generation` as step `generation`.
  std::vector<absl::Status> Save(int generation) const {
    std::vector<absl::Status> results(static_cast<size_t>(kWorld.size));
    const RankLayout ranks = kWorld.ranks();
    absl::Status status = comm::RunThreadWorld({.size = kWorld.size}, [&](comm::Communicator& end) {
      ShardedTraining training(ranks, end.rank());
      training.Fill(generation);
      const ShardingContext sharding{end, ranks};
      results[static_cast<size_t>(end.rank())] =
          SaveTrainingState(Root(), training.model, training.optimizer.get(), {.step = generation},
                            {.keep = 2}, &sharding)
              .status();
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok()) << status;
    return results;
  }
  std::string Root() const { return Path("root"); }

  // Generation 1 alone in the root.
  void Prepare() const {
    PlanSystemCalls({});
    ASSERT_TRUE(RemoveTree(Root()).ok());
    for (const absl::Status& status : Save(1)) MF_ASSERT_OK(status);
  }

  // Reads all of the latest checkpoint in this one process; its generation.
  int ExpectWholeLatest() const {
    absl::StatusOr<std::string> latest = LatestCheckpoint(Root());
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok()) return 0;
    ShardedTraining training(PlanRanks({}, 1).value());
    absl::StatusOr<CheckpointState> state =
        LoadTrainingState(*latest, training.model, training.optimizer.get());
    EXPECT_TRUE(state.ok()) << state.status();
    if (!state.ok()) return 0;
    training.ExpectFilled(static_cast<int>(state->step));
    return static_cast<int>(state->step);
  }

  testing::ScopedTestContext context_;
};

TEST_F(ShardedCrashTest, SurvivesAKillBeforeAnySystemCallOfAnyRank) {
  bool killed = true;
  int num_kills = 0, num_old = 0;
  for (int call = 1; killed && !HasFailure(); ++call) {
    SCOPED_TRACE(absl::StrCat("killed before call ", call));
    Prepare();
    const pid_t child = fork();
    if (child == 0) {
      PlanSystemCalls({.kill_at = call});
      Save(2);
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    num_kills += killed ? 1 : 0;
    const int latest = ExpectWholeLatest();
    num_old += latest == 1 ? 1 : 0;
    for (const absl::Status& saved : Save(3)) MF_EXPECT_OK(saved);
    EXPECT_EQ(ExpectWholeLatest(), 3);
    const std::vector<std::string> names = ListDirectory(Root()).value();
    for (const std::string& name : names) {
      EXPECT_TRUE(name == "latest" || name.size() == 13) << name << " is left";
    }
  }
  // Four shards are created, written, synced, renamed, and their directory synced.
  EXPECT_GE(num_kills, 4 * 5 + 10);
  EXPECT_GE(num_old, 4 * 5);
}

TEST_F(ShardedCrashTest, TellsAllRanksOfAFullDiskOnOneOfThem) {
  for (int rank = 0; rank < kWorld.size; ++rank) {
    const std::string shard = ShardName(rank);
    for (int call = 1; call <= 4 && !HasFailure(); ++call) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, ", call ", call));
      Prepare();
      PlanSystemCalls({.fail_at = call, .error = ENOSPC, .only = "2.incomplete/" + shard});
      const std::vector<absl::Status> results = Save(2);
      PlanSystemCalls({});
      for (const absl::Status& result : results) {
        EXPECT_TRUE(FailsWith(result, absl::StatusCode::kResourceExhausted,
                              absl::StrCat("rank ", rank, ": ")));
        EXPECT_TRUE(FailsWith(result, absl::StatusCode::kResourceExhausted,
                              JoinPath(Root(), "step_00000002.incomplete/" + shard)));
      }
      EXPECT_EQ(ListDirectory(Root()).value(),
                (std::vector<std::string>{"latest", "step_00000001"}));
      EXPECT_EQ(ExpectWholeLatest(), 1);
      for (const absl::Status& saved : Save(3)) MF_EXPECT_OK(saved);
      EXPECT_EQ(ExpectWholeLatest(), 3);
    }
  }
}

// What rank 0 does alone: the directory before, index and names after.
TEST_F(ShardedCrashTest, TellsAllRanksOfAFullDiskAtTheIndexAndTheNames) {
  for (const char* only : {"mkdir", "config.yaml", "index.json", "step_00000002", "latest"}) {
    SCOPED_TRACE(only);
    Prepare();
    PlanSystemCalls({.fail_at = 1, .error = ENOSPC, .only = only});
    for (const absl::Status& result : Save(2)) {
      EXPECT_TRUE(FailsWith(result, absl::StatusCode::kResourceExhausted, "rank 0: [File] "));
    }
    PlanSystemCalls({});
    ExpectWholeLatest();
    for (const absl::Status& saved : Save(3)) MF_EXPECT_OK(saved);
    EXPECT_EQ(ExpectWholeLatest(), 3);
  }
}

}  // namespace
}  // namespace meshfold::parallel
