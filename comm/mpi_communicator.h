// One rank's end of a group in an MPI world: builds collectives from messages, or hands them to the
// group's shared window. The engine makes the MPI calls.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "comm/mpi_engine.h"
#include "comm/mpi_world.h"

namespace meshfold::comm {

// What all groups of a world share.
struct MpiGroupWorld {
  std::shared_ptr<MpiEngine> engine;
  MpiWorldOptions options;
};

// A group as its members know it once they have found each other.
struct MpiGroup {
  CommunicatorInfo info;
  std::vector<int> ranks;  // world ranks of the members in their order here
  int number = 0;          // at least 1, of no other group that shares a rank with this one
};

// This rank's end of `group`. Collective in the group; blocks while its ranks agree on a window.
absl::StatusOr<std::shared_ptr<Communicator>> JoinMpiGroup(const MpiGroupWorld& world,
                                                           MpiGroup group);

}  // namespace meshfold::comm
