#include "core/data/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "tests/core/data/memory_dataset.h"

namespace meshfold {
namespace {

std::shared_ptr<const Dataset> Memory(const std::vector<int32_t>& document) {
  return std::make_shared<MemoryDataset>(std::vector<std::vector<int32_t>>(1, document));
}

TEST(StatisticsTest, UnigramEntropyOfTheTargets) {
  // Targets of each sample of 5: three 1s, one 2, one 0; or of the frequencies 3/5, 1/5, 1/5.
  const std::vector<int32_t> document(600, 7);
  std::vector<int32_t> mixed;
  for (int i = 0; i < 200; ++i) mixed.insert(mixed.end(), {1, 1, 1, 2, 0});
  LoaderOptions options;
  options.packing.seq_length = 5;
  options.global_batch_size = 2;
  options.shuffle = false;
  auto constant = Loader::Create({{Memory(document)}}, options).value();
  EXPECT_EQ(UnigramEntropy(*constant, 100).value(), 0);
  auto loader = Loader::Create({{Memory(mixed)}}, options).value();
  const double expected = -0.6 * std::log(0.6) - 0.4 * std::log(0.2);
  EXPECT_NEAR(UnigramEntropy(*loader, 1 << 20).value(), expected, 1e-2);
  EXPECT_EQ(loader->state().consumed_samples, 0);
}

}  // namespace
}  // namespace meshfold
