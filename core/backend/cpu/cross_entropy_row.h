// Arguments of the vector kernel of cross_entropy.cc, which is included once for each instruction
// set.
#pragma once

#include <cstdint>

namespace meshfold::cpu {

// One row of logits with a target that counts.
struct CrossEntropyRow {
  const float* logits = nullptr;
  int64_t n = 0;  // classes
  int64_t target = 0;
  float scale = 1;
  float* dlogits = nullptr;  // scale (softmax - onehot), may be `logits`; or null
};

}  // namespace meshfold::cpu
