// The groups that a mesh makes over a world of threads hold the ranks that its grid says.
#include "comm/device_mesh.h"

#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

using ::testing::ElementsAre;

RankGrid Grid(std::vector<MeshAxis> axes, int64_t world) {
  return RankGrid::Create(std::move(axes), world).value();
}

// The world ranks that answer in a group.
absl::StatusOr<std::vector<int>> Answering(const ProcessGroup& group, int world_rank) {
  const Tensor own = Tensor::Contiguous({1}, DType::kI32, SystemHostAllocator());
  const Tensor all = Tensor::Contiguous({group.size()}, DType::kI32, SystemHostAllocator());
  own.data<int32_t>()[0] = world_rank;
  MF_ASSIGN_OR_RETURN(std::unique_ptr<Work> work, group.communicator->AllGather(own, all));
  MF_RETURN_IF_ERROR(work->HostWait(absl::Seconds(60)));
  const int32_t* ranks = all.data<int32_t>();
  return std::vector<int>(ranks, ranks + group.size());
}

absl::Status CheckGroups(const DeviceMesh& mesh, const std::vector<MeshGroup>& groups) {
  for (const MeshGroup& wanted : groups) {
    const ProcessGroup& group = mesh.group(wanted.name);
    const std::vector<int64_t> members = mesh.grid().GroupOf(mesh.rank(), wanted.axes);
    const std::vector<int> expected(members.begin(), members.end());
    EXPECT_EQ(group.ranks, expected) << wanted.name;
    EXPECT_EQ(group.communicator->name(), wanted.name);
    MF_ASSIGN_OR_RETURN(std::vector<int> answering, Answering(group, mesh.rank()));
    EXPECT_EQ(answering, expected) << wanted.name;
  }
  return absl::OkStatus();
}

TEST(DeviceMeshTest, GroupsHoldTheRanksOfTheGrid) {
  const absl::Status status = RunThreadWorld({.size = 8}, [](Communicator& world) -> absl::Status {
    const std::shared_ptr<Communicator> shared(&world, [](Communicator*) {});
    const std::vector<MeshGroup> combined = {{"dp_cp", {"dp", "cp"}}, {"all", {"dp", "cp", "tp"}}};
    const RankGrid grid = Grid({{"dp", 2}, {"cp", 2}, {"ulysses", 1}, {"tp", 2}}, 8);
    MF_ASSIGN_OR_RETURN(DeviceMesh mesh, DeviceMesh::Create(shared, grid, combined));
    EXPECT_THAT(mesh.names(), ElementsAre("dp", "cp", "ulysses", "tp", "dp_cp", "all"));
    return CheckGroups(mesh, {{"dp", {"dp"}},
                              {"cp", {"cp"}},
                              {"ulysses", {"ulysses"}},
                              {"tp", {"tp"}},
                              combined[0],
                              combined[1]});
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DeviceMeshTest, AViewSharesGroupsOfTheSameRanks) {
  const absl::Status status = RunThreadWorld({.size = 8}, [](Communicator& world) -> absl::Status {
    const std::shared_ptr<Communicator> shared(&world, [](Communicator*) {});
    MF_ASSIGN_OR_RETURN(DeviceMesh dense,
                        DeviceMesh::Create(shared, Grid({{"pp", 2}, {"dp", 2}, {"tp", 2}}, 8)));
    MF_ASSIGN_OR_RETURN(DeviceMesh expert,
                        dense.View(Grid({{"pp", 2}, {"edp", 1}, {"ep", 2}, {"etp", 2}}, 8)));
    EXPECT_EQ(expert.group("pp").communicator, dense.group("pp").communicator);
    // Other names for the same ranks.
    EXPECT_EQ(expert.group("ep").communicator, dense.group("dp").communicator);
    EXPECT_EQ(expert.group("etp").communicator, dense.group("tp").communicator);
    EXPECT_EQ(expert.group("edp").size(), 1);
    MF_ASSIGN_OR_RETURN(DeviceMesh folded,
                        dense.View(Grid({{"pp", 2}, {"edp", 1}, {"ep", 4}, {"etp", 1}}, 8)));
    return CheckGroups(folded, {{"ep", {"ep"}}, {"etp", {"etp"}}});
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(DeviceMeshTest, WhatDoesNotFitIsRefusedOnEveryRank) {
  const absl::Status status = RunThreadWorld({.size = 2}, [](Communicator& world) {
    const std::shared_ptr<Communicator> shared(&world, [](Communicator*) {});
    const RankGrid grid = Grid({{"dp", 2}, {"tp", 1}}, 2);
    EXPECT_EQ(DeviceMesh::Create(shared, Grid({{"dp", 4}}, 4)).status().message(),
              "mesh: dp 4 is for 4 ranks, the world has 2");
    EXPECT_EQ(DeviceMesh::Create(shared, grid, {{"tp", {"dp", "tp"}}}).status().message(),
              "mesh: two groups are named tp");
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace meshfold::comm
