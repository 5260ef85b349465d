#include "comm/launch.h"

#include <cstdlib>

#include "absl/strings/numbers.h"

namespace meshfold::comm {
namespace {

using Lookup = absl::FunctionRef<const char*(const char* name)>;

int ReadNumber(Lookup variable, const char* name, int otherwise) {
  const char* text = variable(name);
  int value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

bool Read(Lookup variable, const char* rank_name, const char* size_name, int& rank, int& size) {
  const int found_rank = ReadNumber(variable, rank_name, -1);
  const int found_size = ReadNumber(variable, size_name, 0);
  if (found_rank < 0 || found_rank >= found_size) return false;
  rank = found_rank;
  size = found_size;
  return true;
}

}  // namespace

LaunchInfo DetectLaunch(Lookup variable) {
  LaunchInfo info;
  if (Read(variable, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", info.rank, info.size)) {
    info.launcher = "Open MPI";
    Read(variable, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", info.local_rank,
         info.local_size);
  } else if (Read(variable, "PMI_RANK", "PMI_SIZE", info.rank, info.size)) {
    info.launcher = "PMI";
  }
  return info;
}

LaunchInfo DetectLaunch() {
  return DetectLaunch([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace meshfold::comm
