// A world whose ranks are threads of one process: the transport of tests and of `meshfold verify`.
//
// It has no thread of its own. An operation is carried out by the rank whose call completes it, the
// last of a collective or the later of a send and its receive, so calls never wait for other ranks
// and any number may be in flight. Host memory only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"

namespace meshfold::comm {

struct ThreadWorldOptions {
  int size = 1;
  absl::Duration deadline = absl::Minutes(10);
  // Called by every rank before each of its operations, if set: tests delay ranks here.
  std::function<void(int rank)> before_operation;
};

// The world's ends, by rank. Each is used by one thread at a time.
std::vector<std::shared_ptr<Communicator>> MakeThreadWorld(const ThreadWorldOptions& options);

// Runs `body` once per rank at the same time, each on a thread of its own with its end of a fresh
// world, and returns when all have. The caller's ExecContext, if any, is every rank's with
// "rank N" as its tag. A rank that fails, by a Status or a StatusError, aborts the world with its
// message; the result is the first failure, with its rank.
absl::Status RunThreadWorld(const ThreadWorldOptions& options,
                            const std::function<absl::Status(Communicator&)>& body);

}  // namespace meshfold::comm
