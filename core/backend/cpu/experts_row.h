// Arguments of the vector kernels of experts.cc, which is included once for each instruction set.
#pragma once

#include <cstdint>

namespace meshfold::cpu {

// One row of n hidden features: gate_up holds the gate values, then the up values.
struct SwiGluRow {
  const float* gate_up = nullptr;
  int64_t n = 0;
  float weight = 1;  // c, the row's routing weight
  // Forward: activation = c silu(gate) up. Backward, where it holds dy W_down before: the same.
  float* activation = nullptr;
  float* dgate_up = nullptr;  // backward only
};

}  // namespace meshfold::cpu
