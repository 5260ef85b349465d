#include "train/world.h"

#include "comm/self_communicator.h"

namespace meshfold::train {

World SoloWorld() { return {.communicator = std::make_shared<comm::SelfCommunicator>()}; }

}  // namespace meshfold::train
