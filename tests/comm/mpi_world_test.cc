// Worlds of the processes that mpirun started: the conformance cases, and what is special to MPI.
#include "comm/mpi_world.h"

#include <cstring>

#include "comm/launch.h"
#include "tests/comm/communicator_conformance.h"

namespace meshfold::comm {
namespace {

using ::testing::HasSubstr;

void RunMpi(const MpiWorldOptions& options, const RankBody& body) {
  const auto world = MakeMpiWorld(options);
  ASSERT_TRUE(world.ok()) << world.status();
  body(**world);
}

void RunWhole(int, const RankBody& body) { RunMpi({}, body); }

// Messages of 1000 bytes: every case sends some that are cut.
void RunCut(int, const RankBody& body) {
  RunMpi({.max_message_bytes = 1000, .shared_memory = false}, body);
}

void RunMessages(int, const RankBody& body) { RunMpi({.shared_memory = false}, body); }

// Slots of 256 bytes: most cases need several, and use them again.
void RunSmallWindow(int, const RankBody& body) { RunMpi({.shared_bytes_per_rank = 2048}, body); }

MF_REGISTER(WorldRegistry(), "mpi_messages", {.sizes = {DetectLaunch().size}, .run = RunMessages});
MF_REGISTER(WorldRegistry(), "mpi_small_window",
            {.sizes = {DetectLaunch().size}, .run = RunSmallWindow});
MF_REGISTER(WorldRegistry(), "mpi", {.sizes = {DetectLaunch().size}, .run = RunWhole});
MF_REGISTER(WorldRegistry(), "mpi_cut_messages", {.sizes = {DetectLaunch().size}, .run = RunCut});

TEST(MpiWorldTest, RanksThatDisagreeAboutSizesAreTold) {
  RunMpi({}, [](Communicator& world) {
    if (world.size() == 1) return;
    // Rank 0 expects 8 bytes from everybody; the others send 12 and expect 12 from rank 0.
    const Tensor x = Empty({world.rank() == 0 ? 2 : 3}), all = Empty({x.numel() * world.size()});
    const absl::Status status = world.AllGather(x, all).value()->HostWait(kPatience);
    if (world.rank() == 0 || world.size() == 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("[AllGather #0 of group 'world', rank "));
      EXPECT_THAT(std::string(status.message()), HasSubstr("ranks disagree about shapes"));
    }
    Wait(world.Barrier());  // the world goes on
  });
}

// Bits of all sums of some operations, for worlds that differ in their options only.
std::vector<float> SumsOf(const MpiWorldOptions& options) {
  std::vector<float> sums;
  RunMpi(options, [&](Communicator& world) {
    for (const int64_t n : {0, 1, 8191, 8192, 8193, 100003, 1500001}) {
      const Tensor in = Filled(Touchy(world.rank(), n)), out = Empty({n});
      const Tensor whole = Filled(Touchy(world.rank(), n * world.size()));
      const Tensor part = Empty({n});
      auto apart = world.AllReduce(in, out);
      auto scattered = world.ReduceScatter(whole, part);
      Wait(std::move(scattered));
      Wait(std::move(apart));
      Wait(world.AllReduce(in, in));
      EXPECT_EQ(Read(in), Read(out));
      for (const Tensor& result : {out, part}) {
        const std::vector<float> values = Read(result);
        sums.insert(sums.end(), values.begin(), values.end());
      }
    }
  });
  return sums;
}

TEST(MpiWorldTest, SharedMemoryAndMessagesGiveTheSameBits) {
  const std::vector<float> messages = SumsOf({.shared_memory = false}), shared = SumsOf({});
  ASSERT_EQ(messages.size(), shared.size());
  EXPECT_TRUE(messages.empty() ||
              std::memcmp(messages.data(), shared.data(), messages.size() * sizeof(float)) == 0);
}

TEST(MpiWorldTest, TransportSaysHowBytesTravel) {
  RunMpi({}, [](Communicator& world) {
    EXPECT_EQ(world.transport(), world.size() > 1 ? "shared memory" : "MPI messages (one rank)");
  });
  RunMpi({.shared_memory = false}, [](Communicator& world) {
    EXPECT_EQ(world.transport(),
              world.size() > 1 ? "MPI messages (shared memory is off)" : "MPI messages (one rank)");
  });
  // More than a machine has: the world works, and says why it is slow.
  RunMpi({.shared_bytes_per_rank = int64_t{1} << 58}, [](Communicator& world) {
    EXPECT_THAT(world.transport(), HasSubstr("MPI messages ("));
    CheckAllReduce<float>(world, 1000);
  });
}

// Long sums of two groups are under way, and one rank has not joined them.
TEST(MpiWorldTest, AnAbortEndsSumsInFlight) {
  for (const bool shared_memory : {false, true}) {
    RunMpi({.shared_memory = shared_memory}, [](Communicator& world) {
      if (world.size() == 1) return;
      const auto copy = world.Split(0, 0, "copy").value();
      std::vector<std::unique_ptr<Work>> works;
      const Tensor x = Empty({1 << 20}), y = Empty({1 << 20}), token = Filled<int64_t>({1});
      if (world.rank() == 0) {
        for (int peer = 1; peer < world.size(); ++peer) Wait(world.Recv(token, peer));
        world.Abort(absl::InternalError("rank 0 has gone"));
      } else {
        works.push_back(world.Send(token, 0).value());  // the groups are made
      }
      for (int i = 0; i < 3; ++i) {
        works.push_back(world.AllReduce(x, x).value());
        works.push_back(copy->AllReduce(y, y).value());
      }
      for (const auto& work : works) {
        const absl::Status status = work->HostWait(kPatience);
        if (work != works.front() || world.rank() == 0) {  // the token may have left or not
          EXPECT_EQ(status, absl::AbortedError("rank 0 has gone"));
        }
      }
    });
  }
}

// The sum goes on after a missed deadline and is right once the last rank has come.
TEST(MpiWorldTest, ALateRankMissesADeadlineAndTheSumGoesOn) {
  RunMpi({}, [](Communicator& world) {
    if (world.size() == 1) return;
    const int64_t n = 3000001;
    const Tensor x = Filled(Touchy(world.rank(), n)), token = Filled<int64_t>({1});
    if (world.rank() == 0) {
      for (int peer = 1; peer < world.size(); ++peer) Wait(world.Recv(token, peer));
      Wait(world.AllReduce(x, x));
    } else {
      auto sum = world.AllReduce(x, x).value();
      EXPECT_TRUE(absl::IsDeadlineExceeded(sum->HostWait(absl::Milliseconds(5))));
      Wait(world.Send(token, 0));
      Wait(std::move(sum));
    }
    EXPECT_EQ(Read(x), AscendingSum(world.size(), n));
  });
}

// Numbers of groups are agreed on by those who are in them, so groups made on some ranks only, and
// then one of all, do not mix up.
TEST(MpiWorldTest, GroupsOfSomeRanksDoNotMixWithLaterOnes) {
  RunMpi({}, [](Communicator& world) {
    std::vector<std::shared_ptr<Communicator>> groups;
    groups.push_back(world.Split(world.rank() % 2, 0, "half").value());
    if (world.rank() % 2 == 0) groups.push_back(groups[0]->Split(0, 0, "even").value());
    groups.push_back(world.Split(0, 0, "all").value());
    const Tensor in_half = Filled<int64_t>({1}), in_all = Filled<int64_t>({10});
    auto a = groups[0]->AllReduce(in_half, in_half);
    auto b = groups.back()->AllReduce(in_all, in_all);
    Wait(std::move(b));
    Wait(std::move(a));
    EXPECT_EQ(Read<int64_t>(in_half)[0], groups[0]->size());
    EXPECT_EQ(Read<int64_t>(in_all)[0], 10 * world.size());
  });
}

}  // namespace
}  // namespace meshfold::comm
