// Initial values: each element is a pure function of (seed, parameter name, global index).
#pragma once

#include <cstdint>

#include "core/nn/module.h"

namespace meshfold {

// Allocates `parameter` on the current allocator, whole, in its dtype, contents unspecified.
void Allocate(Parameter& parameter);

// Allocates and fills one parameter (whole) on the current backend.
void Initialize(Parameter& parameter, uint64_t seed);

// All parameters of `module`.
void Initialize(Module& module, uint64_t seed);

}  // namespace meshfold
