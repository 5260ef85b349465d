// World: what a run knows about the other processes of it.
#pragma once

#include <memory>

#include "comm/communicator.h"

namespace meshfold::train {

struct World {
  std::shared_ptr<comm::Communicator> communicator;
  int ranks_on_node = 1;  // share this machine's cores
};

// This process alone.
World SoloWorld();

}  // namespace meshfold::train
