// What the launcher tells a process about itself, before any MPI call.
#pragma once

#include <string>

#include "absl/functional/function_ref.h"

namespace meshfold::comm {

struct LaunchInfo {
  std::string launcher;  // "Open MPI", "PMI" (MPICH, Slurm's srun), or empty: started by hand
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among the processes on this machine; PMI does not say
};

// Reads the environment through `variable`, which returns null for what is not set. Values that are
// no numbers, and a rank outside of the size, count as not set.
LaunchInfo DetectLaunch(absl::FunctionRef<const char*(const char* name)> variable);

// Of this process.
LaunchInfo DetectLaunch();

}  // namespace meshfold::comm
