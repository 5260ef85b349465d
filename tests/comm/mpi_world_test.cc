// Worlds of the processes that mpirun started: the conformance cases, and what is special to MPI.
#include "comm/mpi_world.h"

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
void RunCut(int, const RankBody& body) { RunMpi({.max_message_bytes = 1000}, body); }

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
