// Worlds whose ranks live in one process; each is a line at the end.
#include "comm/self_communicator.h"
#include "tests/comm/communicator_conformance.h"

namespace meshfold::comm {
namespace {

void RunSelf(int, const RankBody& body) {
  SelfCommunicator world;
  body(world);
}

MF_REGISTER(WorldRegistry(), "self", {.sizes = {1}, .run = RunSelf});

}  // namespace
}  // namespace meshfold::comm
