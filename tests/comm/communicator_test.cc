// Worlds whose ranks live in one process; each is a line at the end.
#include <chrono>
#include <random>
#include <thread>

#include "comm/self_communicator.h"
#include "comm/thread_world.h"
#include "tests/comm/communicator_conformance.h"

namespace meshfold::comm {
namespace {

void RunSelf(int, const RankBody& body) {
  SelfCommunicator world;
  body(world);
}

void RunOnThreads(const ThreadWorldOptions& options, const RankBody& body) {
  const absl::Status status = RunThreadWorld(options, [&](Communicator& world) {
    body(world);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

void RunThreads(int size, const RankBody& body) { RunOnThreads({.size = size}, body); }

// Every rank is late by a time of its own before every operation, so that all orders of arrival
// occur.
void RunDelayedThreads(int size, const RankBody& body) {
  std::vector<std::minstd_rand> draws;
  for (int rank = 0; rank < size; ++rank) draws.emplace_back(static_cast<unsigned>(rank) + 1);
  const auto delay = [&draws](int rank) {
    const auto microseconds = draws[static_cast<size_t>(rank)]() % 4 * 150;
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  };
  RunOnThreads({.size = size, .before_operation = delay}, body);
}

MF_REGISTER(WorldRegistry(), "self", {.sizes = {1}, .run = RunSelf});
MF_REGISTER(WorldRegistry(), "threads", {.sizes = {1, 2, 3, 4, 8}, .run = RunThreads});
MF_REGISTER(WorldRegistry(), "delayed_threads", {.sizes = {2, 5}, .run = RunDelayedThreads});

}  // namespace
}  // namespace meshfold::comm
