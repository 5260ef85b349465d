// Nothing is lost: a writer that is killed, or whose disk fails, before any of its system calls
// leaves a whole checkpoint and a directory in which the next writer works.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/exec_context.h"
#include "parallel/checkpoint.h"
#include "tests/core/io/scratch.h"
#include "tests/parallel/failing_system_calls.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

using testing::PlanSystemCalls;
using testing::SystemCallTrace;

// What is there before a save, and the save.
struct Scenario {
  const char* name;
  std::vector<int64_t> before;  // steps saved, in this order
  int64_t step;                 // then this one, with other contents
  int64_t keep;
};

const Scenario kScenarios[] = {
    {"first", {}, 5, 0},         {"next", {1, 2}, 5, 0},
    {"again", {4, 5}, 5, 0},     {"back and again", {5, 6, 5}, 5, 0},
    {"prunes", {1, 2, 3}, 5, 1}, {"again and prunes", {3, 4, 5}, 5, 2},
};

class CheckpointCrashTest : public ScratchTest {
 protected:
  CheckpointCrashTest() : scope_(context_) {}

  // A checkpoint's contents are told apart by `generation`.
  absl::StatusOr<std::string> Save(int64_t step, int64_t generation, int64_t keep = 0) const {
    std::vector<NamedTensor> tensors = {
        {"w", testing::MakeTensor(std::vector<double>(300, generation), {3, 100})}};
    CheckpointState state{step, {{"generation", generation}}, absl::StrCat("v: ", generation)};
    return SaveCheckpoint(Root(), state, tensors, {.keep = keep});
  }
  std::string Root() const { return Path("new/root"); }

  // Saves what `scenario` starts with as generation 1, from an empty directory.
  void Prepare(const Scenario& scenario) const {
    PlanSystemCalls({});
    ASSERT_TRUE(RemoveTree(Path("new")).ok());
    for (int64_t step : scenario.before) MF_ASSERT_OK(Save(step, 1));
    PlanSystemCalls({});
  }

  // Opens and reads all of a checkpoint; its generation, or 0 after a failure.
  static int64_t GenerationOf(const std::string& path, int64_t* step) {
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    if (!checkpoint.ok()) return 0;
    const int64_t generation = checkpoint->state().integers.at("generation");
    Tensor w = testing::UnwrittenTensor({3, 100});
    MF_EXPECT_OK(checkpoint->Read("w", w));
    testing::ExpectClose(w, std::vector<double>(300, static_cast<double>(generation)), 0);
    EXPECT_EQ(checkpoint->state().config_yaml, absl::StrCat("v: ", generation));
    *step = checkpoint->state().step;
    return generation;
  }

  // The latest checkpoint is whole: the one of before the save (generation 1), or the new one (2).
  // Returns which.
  int64_t ExpectWholeLatest(const Scenario& scenario) const {
    absl::StatusOr<std::string> latest = LatestCheckpoint(Root());
    if (!latest.ok() && scenario.before.empty()) {
      EXPECT_EQ(latest.status().code(), absl::StatusCode::kNotFound);
      return 1;
    }
    EXPECT_TRUE(latest.ok()) << latest.status();
    if (!latest.ok()) return 0;
    int64_t step = -1;
    const int64_t generation = GenerationOf(*latest, &step);
    EXPECT_EQ(step, generation == 2 ? scenario.step : scenario.before.back()) << *latest;
    return generation;
  }

  // Another save works, and after it the root holds whole checkpoints and nothing else.
  void ExpectNextSaveTidiesUp() const {
    MF_ASSERT_OK(Save(7, 3));
    const std::vector<std::string> names = ListDirectory(Root()).value();
    for (const std::string& name : names) {
      int64_t step = -1;
      if (name == "latest") continue;
      EXPECT_TRUE(name.size() == 13 && name.substr(0, 5) == "step_") << name << " is left";
      EXPECT_NE(GenerationOf(JoinPath(Root(), name), &step), 0) << name;
    }
    int64_t step = -1;
    EXPECT_EQ(GenerationOf(LatestCheckpoint(Root()).value(), &step), 3);
  }

  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
};

TEST_F(CheckpointCrashTest, SurvivesAKillBeforeAnySystemCall) {
  for (const Scenario& scenario : kScenarios) {
    SCOPED_TRACE(scenario.name);
    bool killed = true;
    int64_t generation = 1;
    int num_kills = 0;
    for (int call = 1; killed && !HasFailure(); ++call) {
      SCOPED_TRACE(absl::StrCat("killed before call ", call));
      Prepare(scenario);
      const pid_t child = fork();
      if (child == 0) {
        PlanSystemCalls({.kill_at = call});
        _exit(Save(scenario.step, 2, scenario.keep).ok() ? 0 : 1);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      killed = WIFSIGNALED(status);
      ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
      num_kills += killed ? 1 : 0;
      const int64_t previous = generation;
      generation = ExpectWholeLatest(scenario);
      EXPECT_GE(generation, previous) << "a later kill shows an older checkpoint";
      ExpectNextSaveTidiesUp();
    }
    EXPECT_EQ(generation, 2);
    EXPECT_GE(num_kills, 20);
  }
}

TEST_F(CheckpointCrashTest, ReportsAFullDiskAtAnySystemCall) {
  for (const Scenario& scenario : kScenarios) {
    SCOPED_TRACE(scenario.name);
    bool failed = true;
    for (int call = 1; failed && !HasFailure(); ++call) {
      Prepare(scenario);
      PlanSystemCalls({.fail_at = call, .error = ENOSPC});
      absl::Status status = Save(scenario.step, 2, scenario.keep).status();
      failed = call <= static_cast<int>(SystemCallTrace().size());
      const std::string what = failed ? SystemCallTrace()[static_cast<size_t>(call) - 1] : "";
      SCOPED_TRACE(absl::StrCat("failed: ", what));
      PlanSystemCalls({});
      ASSERT_EQ(status.ok(), !failed);
      ExpectWholeLatest(scenario);
      if (failed) {
        EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, directory()));
        absl::StatusOr<std::string> latest = LatestCheckpoint(Root());
        EXPECT_FALSE(latest.ok() && absl::EndsWith(*latest, ".replaced")) << *latest;
        // Removing is what does not fail on a full disk; all else leaves nothing partial.
        const bool is_removal = what.substr(0, 6) == "remove";
        absl::StatusOr<std::vector<std::string>> names = ListDirectory(Root());
        for (const std::string& name : names.ok() ? *names : std::vector<std::string>()) {
          EXPECT_TRUE(is_removal || !absl::StrContains(name, "incomplete")) << name;
          EXPECT_FALSE(absl::StrContains(name, ".tmp")) << name;
        }
      }
      ExpectNextSaveTidiesUp();
    }
  }
}

TEST_F(CheckpointCrashTest, LeavesTheEarlierCheckpointWhenFilesMayNotGrow) {
  MF_ASSERT_OK(Save(1, 1));
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 4096;  // of the kernel's own, unlike the other tests' failures
  auto* handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::vector<NamedTensor> large = {{"w", testing::RandomTensor("w", {1000, 1000})}};
  absl::Status status = SaveCheckpoint(Root(), {.step = 2}, large, {}).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted,
                        JoinPath(Root(), "step_00000002.incomplete/shard-00000.safetensors")));
  EXPECT_EQ(ListDirectory(Root()).value(), (std::vector<std::string>{"latest", "step_00000001"}));
  int64_t step = -1;
  EXPECT_EQ(GenerationOf(LatestCheckpoint(Root()).value(), &step), 1);
}

// A crash of the machine forgets what was not synced: names only come after their contents.
TEST_F(CheckpointCrashTest, SyncsBeforeItNames) {
  for (const Scenario& scenario : kScenarios) {
    SCOPED_TRACE(scenario.name);
    Prepare(scenario);
    MF_ASSERT_OK(Save(scenario.step, 2, scenario.keep));
    std::map<std::string, bool> synced;  // of files and directories, since they last changed
    std::set<std::string> renamed_in;    // directories with a rename that was not synced
    for (const std::string& call : SystemCallTrace()) {
      std::vector<std::string> words = absl::StrSplit(call, ' ');
      const std::string &what = words[0], &path = words[1];
      if (what == "write" || what == "create") synced[path] = false;
      if (what == "create" || what == "mkdir") synced[DirName(path)] = false;
      if (what == "fsync") {
        synced[path] = true;
        renamed_in.erase(path);
      }
      if (what != "rename") continue;
      for (const auto& [changed, is_synced] : synced) {
        EXPECT_TRUE(is_synced || changed.substr(0, path.size()) != path) << call << ": " << changed;
      }
      EXPECT_EQ(renamed_in.size(), 0u) << "before " << call;
      synced[DirName(words[2])] = false;
      renamed_in.insert(DirName(words[2]));
    }
    for (const auto& [changed, is_synced] : synced) {
      EXPECT_TRUE(is_synced || !FileExists(changed)) << changed;
    }
    EXPECT_GE(synced.size(), 6u);
  }
}

}  // namespace
}  // namespace meshfold::parallel
