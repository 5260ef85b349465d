#include "train/commands/launched_world.h"

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/launch.h"
#include "comm/mpi_world.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::train {

absl::Status RefuseSeveralRanks(const char* command) {
  const comm::LaunchInfo launch = comm::DetectLaunch();
  if (launch.size == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(launch.size, " ranks were started; meshfold ",
                                               command, " runs on one in this version"));
}

absl::Status RunInLaunchedWorld(const std::function<absl::Status(const World&)>& body) {
  const comm::LaunchInfo launch = comm::DetectLaunch();
  World world = SoloWorld();
  if (launch.size > 1) {
    MF_ASSIGN_OR_RETURN(world.communicator, comm::MakeMpiWorld({}));
    world.ranks_on_node = launch.local_size;
  }
  absl::Status status;
  try {
    status = body(world);
  } catch (const StatusError& error) {
    status = error.status();
  }
  if (status.ok() || launch.size == 1) return status;
  if (!absl::IsAborted(status)) {  // else it is another rank's, which has said it
    status =
        absl::Status(status.code(), absl::StrCat("rank ", launch.rank, ": ", status.message()));
    // Before the others hear of it: the launcher ends all ranks as soon as one is gone.
    std::fprintf(stderr, "meshfold: %s\n", std::string(status.message()).c_str());
    world.communicator->Abort(status);
  }
  return absl::Status(status.code(), "");
}

}  // namespace meshfold::train
