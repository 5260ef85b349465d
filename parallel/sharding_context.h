// Who takes part in a collective that acts on layouts: the world, and how its ranks are arranged.
#pragma once

#include "comm/communicator.h"
#include "parallel/rank_layout.h"

namespace meshfold::parallel {

// Both outlive the call that they are given to. Of Meshes: {*meshes.dense.world(), meshes.ranks}.
struct ShardingContext {
  comm::Communicator& world;
  const RankLayout& ranks;
};

}  // namespace meshfold::parallel
