// How a parameter or gradient is spread over ranks: metadata only, read and acted on by parallel/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshfold {

// What one mesh axis does to a tensor.
struct Placement {
  enum class Kind {
    kShard,    // dim `dim` is cut into `parts` pieces over the axis (fewer parts than ranks:
               // neighbours replicate)
    kPartial,  // each rank holds a summand; with `parts` above 1, each of that many runs of
               // neighbours adds up to a value of its own (those that replicate a shard)
  };
  std::string axis;  // name of the mesh axis; axes not listed replicate
  Kind kind = Kind::kShard;
  int dim = 0;        // kShard
  int64_t parts = 1;  // divides the axis, or the axis divides it
};

// Belongs to one view of the mesh ("dense" or "expert"); several placements on one dim nest in mesh
// order. No placements: replicated within the view.
struct Layout {
  std::string view = "dense";
  std::vector<Placement> placements;
};

}  // namespace meshfold
