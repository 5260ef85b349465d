// A sum by Highway's run-time dispatch under OpenMP: proves that kernels can choose the vector
// width at run time without -march flags.
#pragma once

#include "absl/types/span.h"

namespace meshfold::build_test {

float HighwaySum(absl::Span<const float> values);

}  // namespace meshfold::build_test
