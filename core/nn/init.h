// Initial values: each element is a pure function of (seed, parameter name, global index).
#pragma once

#include <cstdint>

#include "core/nn/module.h"

namespace meshfold {

// Allocates this rank's part of `parameter` on the current allocator, in its dtype, contents
// unspecified.
void Allocate(Parameter& parameter);

// Allocates and fills this rank's part of one parameter on the current backend: bit-equal to that
// part of the whole.
void Initialize(Parameter& parameter, uint64_t seed);

// All parameters of `module`.
void Initialize(Module& module, uint64_t seed);

}  // namespace meshfold
