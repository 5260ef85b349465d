// A world whose ranks are the processes that mpirun started. Host memory only.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/communicator.h"

namespace meshfold::comm {

struct MpiWorldOptions {
  absl::Duration deadline = absl::Minutes(10);
  // Longer transfers are cut: MPI counts end at 2^31 - 1.
  int64_t max_message_bytes = int64_t{1} << 30;
  // Whether groups inside one node use shared memory, and how much of it a group takes for each of
  // its ranks: at least 512 bytes times the number of ranks. Equal on all ranks.
  bool shared_memory = true;
  int64_t shared_bytes_per_rank = int64_t{2} << 20;
};

// This process's end of a new world, named "world", with a communication thread of its own, which
// lives until the last communicator of the world is gone. Initialises MPI with MPI_THREAD_MULTIPLE
// where nobody has; MPI is then finalised with the world, and the process makes no other; not
// after an abort, where MPI could wait for ever: the launcher ends what is left. Collective over
// all processes. Unavailable when MPI cannot serve several threads.
//
// A group whose ranks are all on one node, as MPI sees nodes, moves sums, gathers, broadcasts and
// barriers through a window of shared memory (comm/shared_channel.h), with the same bits as by
// messages; AllToAllV, Send and Recv, and every other group, go by messages. Where ranks cannot map
// one window the group goes by messages too, and transport() says why.
//
// Sums are exchanged, added in ascending rank and gathered, each rank adding its part:
// an all-reduce of n bytes over p ranks sends 2 n (p - 1) / p from each (up to rounding of parts to
// cache lines), one of at most 32 KiB in one round n (p - 1). AllGather and ReduceScatter of
// n-byte wholes send n (p - 1) / p, Broadcast n from the root to each other rank. Split calls of
// one world come from one thread; there may be 8190 groups.
absl::StatusOr<std::shared_ptr<Communicator>> MakeMpiWorld(const MpiWorldOptions& options);

}  // namespace meshfold::comm
