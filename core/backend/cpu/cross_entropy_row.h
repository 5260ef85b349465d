// Arguments of the vector kernel of cross_entropy.cc, which is included once for each instruction
// set.
#pragma once

#include <cstdint>

namespace meshfold::cpu {

// A row's sum over classes of exp(z - highest).
struct ExpSum {
  double highest = 0, total = 0;
};

// The two halves of a row of cross-entropy. SumExp also writes the terms of the sum to `exps`,
// which may be `logits` or null; ScaleRow multiplies by a factor in place.
struct SumExpRow {
  const float* logits = nullptr;
  int64_t n = 0;  // classes, at least 1
  float* exps = nullptr;
};

}  // namespace meshfold::cpu
