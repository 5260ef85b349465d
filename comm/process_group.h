// ProcessGroup: a communicator together with who is in it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace meshfold::comm {

// The ranks of one axis of a mesh that this rank belongs to. Copies share the communicator.
struct ProcessGroup {
  std::string name;        // the axis: "dp", "ep"
  std::vector<int> ranks;  // world ranks in the order of the group
  std::shared_ptr<Communicator> communicator;

  int rank() const { return communicator->rank(); }
  int size() const { return communicator->size(); }
};

}  // namespace meshfold::comm
