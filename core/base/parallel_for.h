// Loops over the threads of this rank (ExecContext::num_threads), on the OpenMP pool that oneDNN
// shares. With one thread no OpenMP construct is entered, so ThreadSanitizer builds stay quiet.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace meshfold {

// Calls body(begin, end) over a partition of [0, count) into at most `num_threads` contiguous
// ranges of at least `grain` elements. Ranges depend on (count, grain, num_threads) only.
void ParallelFor(int64_t count, int64_t grain, int num_threads,
                 absl::FunctionRef<void(int64_t begin, int64_t end)> body);

// Calls body(i) for every i in [0, count), threads taking the next index as they become free: for
// items of unequal cost whose results do not depend on the thread. Nested GEMMs use one thread.
void ParallelForDynamic(int64_t count, int num_threads, absl::FunctionRef<void(int64_t i)> body);

}  // namespace meshfold
