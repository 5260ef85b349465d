#include "moe/count_exchange.h"

namespace meshfold::moe {
namespace {

class LocalCountExchange : public CountExchange {
 public:
  SharedCounts Share(const std::vector<int64_t>& routed_E) override {
    return {.group_RE = {routed_E}, .micro_batch_E = routed_E};
  }
  std::vector<int64_t> SumOverRanks(std::vector<int64_t> load_E) override { return load_E; }
};

}  // namespace

std::unique_ptr<CountExchange> MakeLocalCountExchange() {
  return std::make_unique<LocalCountExchange>();
}

}  // namespace meshfold::moe
