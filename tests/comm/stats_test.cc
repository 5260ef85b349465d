// Counters in worlds of one process; the conformance suite checks the totals in every world.
#include "comm/stats.h"

#include <thread>
#include <vector>

#include "comm/self_communicator.h"
#include "comm/thread_world.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

Tensor Floats(int64_t count) {
  return Tensor::Contiguous({count}, DType::kF32, SystemHostAllocator());
}

void RunThreads(int size, const std::function<absl::Status(Communicator&)>& body) {
  const absl::Status status = RunThreadWorld({.size = size}, body);
  EXPECT_TRUE(status.ok()) << status;
}

TrafficCount CountOf(const Communicator& world, const std::string& operation) {
  return world.stats()->Snapshot()[{world.name(), operation}];
}

// 20001 floats on 3 ranks: parts of 6672 = 417 lines, 6672 and 6657.
TEST(TrafficStatsTest, ALongSumSendsWhatOthersAddAndTheOwnPartToEach) {
  RunThreads(3, [](Communicator& world) -> absl::Status {
    const Tensor x = Floats(20001);
    MF_RETURN_IF_ERROR(WaitFor(world.AllReduce(x, x), world));
    const int64_t own = world.rank() == 2 ? 6657 : 6672;
    EXPECT_EQ(CountOf(world, "AllReduce").sent_bytes, 4 * (20001 - own + 2 * own));
    EXPECT_EQ(CountOf(world, "AllReduce").calls, 1);
    return absl::OkStatus();
  });
}

TEST(TrafficStatsTest, AGroupOfOneSendsNothingAndIsCounted) {
  SelfCommunicator world("solo");
  const Tensor x = Floats(7), y = Floats(7);
  ASSERT_TRUE(WaitFor(world.AllReduce(x, y), world).ok());
  ASSERT_TRUE(WaitFor(world.AllToAllV(x, {7}, y, {7}), world).ok());
  ASSERT_TRUE(WaitFor(world.Split(0, 0, "dp").value()->Barrier(), world).ok());
  EXPECT_FALSE(world.AllReduce(x, Floats(8)).ok());
  const TrafficSnapshot snapshot = world.stats()->Snapshot();
  ASSERT_EQ(snapshot.size(), 3u);
  EXPECT_EQ(snapshot.count({"dp", "Barrier"}), 1u) << "groups share the counters";
  for (const auto& [key, count] : snapshot) {
    EXPECT_EQ(count.calls, 1) << key.operation;
    EXPECT_EQ(count.sent_bytes, 0);
    EXPECT_GE(count.in_flight, absl::ZeroDuration());
  }
}

// Rank 1 comes late: rank 0 is blocked for that long, or for the part after its own pause.
TEST(TrafficStatsTest, ExposedIsTheTimeBlockedAndNotTheTimeInFlight) {
  RunThreads(2, [](Communicator& world) -> absl::Status {
    const absl::Duration late = absl::Milliseconds(30);
    if (world.rank() == 1) std::this_thread::sleep_for(absl::ToChronoMilliseconds(late));
    MF_RETURN_IF_ERROR(WaitFor(world.Barrier(), world));
    if (world.rank() == 0) {
      EXPECT_GT(CountOf(world, "Barrier").exposed, absl::ZeroDuration());
      EXPECT_GE(CountOf(world, "Barrier").in_flight, CountOf(world, "Barrier").exposed / 2);
    }
    const Tensor x = Floats(1);
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Work> sum, world.AllReduce(x, x));
    while (!sum->Done()) std::this_thread::yield();
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(late));
    const absl::Time before = absl::Now();
    MF_RETURN_IF_ERROR(sum->HostWait(world.deadline()));
    EXPECT_LE(CountOf(world, "AllReduce").exposed, absl::Now() - before) << "it was over before";
    return absl::OkStatus();
  });
}

TEST(TrafficStatsTest, AMissedDeadlineCountsAsExposedOnly) {
  RunThreads(2, [](Communicator& world) -> absl::Status {
    const Tensor token = Floats(1);
    if (world.rank() == 1) {
      MF_RETURN_IF_ERROR(WaitFor(world.Recv(token, 0), world));
      return WaitFor(world.Barrier(), world);
    }
    MF_ASSIGN_OR_RETURN(std::unique_ptr<Work> barrier, world.Barrier());
    EXPECT_TRUE(absl::IsDeadlineExceeded(barrier->HostWait(absl::Milliseconds(2))));
    EXPECT_GE(CountOf(world, "Barrier").exposed, absl::Milliseconds(2));
    EXPECT_EQ(CountOf(world, "Barrier").in_flight, absl::ZeroDuration());
    MF_RETURN_IF_ERROR(WaitFor(world.Send(token, 1), world));
    MF_RETURN_IF_ERROR(barrier->HostWait(world.deadline()));
    EXPECT_GE(CountOf(world, "Barrier").in_flight, absl::Milliseconds(2));
    EXPECT_EQ(CountOf(world, "Barrier").calls, 1);
    return absl::OkStatus();
  });
}

TEST(TrafficStatsTest, TakeSnapshotLosesNothingBetweenThreads) {
  TrafficStats stats;
  const TrafficKey key{"ep", "AllToAllV"};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) stats.AddCall(key, 3);
    });
  }
  int64_t calls = 0, bytes = 0;
  const auto take = [&] {
    for (const auto& [taken_key, count] : stats.TakeSnapshot()) {
      calls += count.calls;
      bytes += count.sent_bytes;
    }
  };
  for (int i = 0; i < 100; ++i) take();
  for (std::thread& thread : threads) thread.join();
  take();
  EXPECT_EQ(calls, 4000);
  EXPECT_EQ(bytes, 12000);
  EXPECT_TRUE(stats.Snapshot().empty());
}

}  // namespace
}  // namespace meshfold::comm
