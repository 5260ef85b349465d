// Runs one kernel in every way that must not matter: instruction set, threads, row padding.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {

// Makes inputs with the given padding, runs a kernel, returns its outputs.
using KernelRun = std::function<std::vector<Tensor>(Padding)>;

// Runs `run` in its own CPU context for each vector instruction set of this machine. For each:
// calls check(outputs) for one thread and unpadded rows, and expects the same bits with 2 and 3
// threads and with guarded padding, and the guards intact.
void ForEachVariant(const KernelRun& run,
                    const std::function<void(const std::vector<Tensor>&)>& check);

}  // namespace meshfold::testing
