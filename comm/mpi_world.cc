#include "comm/mpi_world.h"

#include <mpi.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/mpi_communicator.h"
#include "comm/mpi_engine.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {
namespace {

// Whether MPI was initialised here, and not by the program.
absl::StatusOr<bool> InitializeMpi() {
  int initialized = 0, provided = 0;
  MPI_Initialized(&initialized);
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  if (provided >= MPI_THREAD_MULTIPLE) return initialized == 0;
  return absl::UnavailableError(
      absl::StrCat("MPI offers thread level ", provided, "; MPI_THREAD_MULTIPLE is needed"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> MakeMpiWorld(const MpiWorldOptions& options) {
  MF_ASSIGN_OR_RETURN(const bool owns_mpi, InitializeMpi());
  MF_ASSIGN_OR_RETURN(std::shared_ptr<MpiEngine> engine,
                      MpiEngine::Create({.max_message_bytes = options.max_message_bytes,
                                         .finalizes_mpi = owns_mpi}));
  std::vector<int> ranks(static_cast<size_t>(engine->size()));
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  MpiGroup group{{"world", engine->rank(), engine->size(), options.deadline},
                 std::move(ranks),
                 engine->next_group_id()};
  engine->set_next_group_id(group.number + 1);
  return JoinMpiGroup({std::move(engine), options}, std::move(group));
}

}  // namespace meshfold::comm
