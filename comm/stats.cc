#include "comm/stats.h"

#include <utility>

namespace meshfold::comm {

void TrafficStats::AddCall(const TrafficKey& key, int64_t sent_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  TrafficCount& count = counts_[key];
  ++count.calls;
  count.sent_bytes += sent_bytes;
}

void TrafficStats::AddExposed(const TrafficKey& key, absl::Duration exposed) {
  std::lock_guard<std::mutex> lock(mutex_);
  counts_[key].exposed += exposed;
}

void TrafficStats::AddInFlight(const TrafficKey& key, absl::Duration in_flight) {
  std::lock_guard<std::mutex> lock(mutex_);
  counts_[key].in_flight += in_flight;
}

TrafficSnapshot TrafficStats::Snapshot() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

TrafficSnapshot TrafficStats::TakeSnapshot() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(counts_, {});
}

}  // namespace meshfold::comm
