// Figures of a corpus to compare a model's loss with.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/data/loader.h"

namespace meshfold {

// Entropy in nats of the token frequencies among the first `max_tokens` or so training targets
// (whole batches are read, at most one epoch's worth): the loss of a model that knows frequencies
// and nothing else. Does not move the loader. Local.
absl::StatusOr<double> UnigramEntropy(Loader& loader, int64_t max_tokens);

}  // namespace meshfold
