#include "core/data/statistics.h"

#include <cmath>
#include <map>

#include "core/base/status_macros.h"

namespace meshfold {

absl::StatusOr<double> UnigramEntropy(Loader& loader, int64_t max_tokens) {
  std::map<int32_t, int64_t> counts;
  int64_t total = 0, samples = 0, epoch = 0;
  for (int i = 0; i < loader.num_datasets(); ++i) epoch += loader.samples_per_epoch(i);
  while (total < max_tokens && samples < epoch) {
    MF_ASSIGN_OR_RETURN(GlobalBatch batch, loader.TrainBatch(samples));
    for (const MicroBatch& micro_batch : batch.micro_batches) {
      for (int32_t target : micro_batch.targets) {
        if (target < 0) continue;
        ++counts[target];
        ++total;
      }
    }
    samples += batch.num_samples;
  }
  double entropy = 0;
  for (const auto& [id, count] : counts) {
    const double p = static_cast<double>(count) / static_cast<double>(total);
    entropy -= p * std::log(p);
  }
  return entropy;
}

}  // namespace meshfold
