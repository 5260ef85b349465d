// Counters of the traffic of one rank, by group and operation.
//
// Bytes are those that this rank sends to other ranks, counted where a transfer is planned and
// never estimated. For p ranks:
//   AllReduce of n bytes       n - own + (p - 1) own, where `own` is the part that this rank adds:
//                              2 n (p - 1) / p but for rounding to lines of 64 bytes, and over all
//                              ranks exactly 2 n (p - 1). Up to 32 KiB: n (p - 1)
//   ReduceScatter, AllGather   (p - 1) times the bytes of one rank's part
//   AllToAllV                  the bytes of the rows to other ranks
//   Broadcast of n bytes       n (p - 1) from the root, 0 from the others
//   Send of n bytes            n
//   Recv, Barrier, Split       0 (Split is not counted at all)
// Shared memory counts what the algorithm moves from one rank to another, as if each reader got a
// message; a group of one sends nothing.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "absl/time/time.h"

namespace meshfold::comm {

struct TrafficKey {
  std::string group;      // Communicator::name()
  std::string operation;  // "AllReduce"
  bool operator<(const TrafficKey& other) const {
    return std::tie(group, operation) < std::tie(other.group, other.operation);
  }
};

struct TrafficCount {
  int64_t calls = 0;       // that were not refused
  int64_t sent_bytes = 0;  // of these calls
  // Of the operations that somebody has waited for: from issue to completion, and for how long the
  // callers were blocked in HostWait or WaitOn, whether it succeeded or not.
  absl::Duration in_flight, exposed;
};

using TrafficSnapshot = std::map<TrafficKey, TrafficCount>;

// One rank's counters: owned by its end of a world and shared by all groups split from it.
// Thread-safe.
class TrafficStats {
 public:
  void AddCall(const TrafficKey& key, int64_t sent_bytes);
  void AddExposed(const TrafficKey& key, absl::Duration exposed);
  void AddInFlight(const TrafficKey& key, absl::Duration in_flight);

  TrafficSnapshot Snapshot() const;
  // What Snapshot returns, and zero from then on: a step's traffic. An operation that is issued
  // before and waited for after has its bytes here and its durations in the next.
  TrafficSnapshot TakeSnapshot();

 private:
  mutable std::mutex mutex_;
  TrafficSnapshot counts_;
};

}  // namespace meshfold::comm
