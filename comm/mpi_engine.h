// MpiEngine: the communication thread of one rank of an MPI world.
//
// Every MPI call after start-up is made by this one thread: it posts the messages of the operations
// it is given, finds out which are over, and runs what follows; operations through shared memory it
// advances chunk by chunk. It sleeps while nothing is in flight. The only files that include mpi.h
// are this one's .cc and mpi_world.cc.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "comm/shared_channel.h"
#include "core/tensor/tensor.h"

namespace meshfold::comm {

// Bytes to or from another rank of the world. Those of one direction between two ranks under one
// tag arrive in the order in which they were posted.
struct MpiTransfer {
  enum class Direction { kSend, kReceive };
  Direction direction = Direction::kSend;
  int peer = 0;  // world rank, not this one
  int tag = 0;   // at least 1
  void* data = nullptr;
  int64_t bytes = 0;  // any number: long ones travel as several messages
};

// An operation as rounds: the transfers of a round are posted together; when all are over, `then`
// runs on the communication thread, and the next round begins. Or one that goes through `channel`.
struct MpiOperation {
  struct Round {
    std::vector<MpiTransfer> transfers;
    std::function<void()> then;  // may be empty
  };
  std::string what;           // leads messages
  std::vector<Round> rounds;  // at least one, unless there is a channel
  std::shared_ptr<SharedChannel> channel;
  SharedOperation shared;      // what `channel` is given; `done` and `what` are the engine's
  std::vector<Tensor> memory;  // that the rounds read and write: alive until all is over

  // For the engine.
  size_t round = 0;
  int64_t open_messages = 0;
  bool done = false;  // this and what follows under the engine's mutex
  absl::Status result;
  std::chrono::steady_clock::time_point ended;
};

// Thread-safe but for Create and destruction.
class MpiEngine {
 public:
  struct Options {
    int64_t max_message_bytes = int64_t{1} << 30;  // in [1, 2^31 - 1], equal on all ranks
    bool finalizes_mpi = false;  // the destructor does, unless the world was aborted
  };
  // Collective over all processes that MPI started; MPI must have been initialised with
  // MPI_THREAD_MULTIPLE. Worlds made one after the other do not hear each other.
  static absl::StatusOr<std::unique_ptr<MpiEngine>> Create(const Options& options);
  // Operations that are not over are given up, with their memory kept for as long as MPI may still
  // touch it. Waits, a second at most, for the messages of an abort to leave.
  ~MpiEngine();
  MpiEngine(const MpiEngine&) = delete;
  MpiEngine& operator=(const MpiEngine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // A number of the node that a rank of the world runs on: ranks with the same may share memory.
  int node_of(int world_rank) const { return nodes_[static_cast<size_t>(world_rank)]; }

  // Begins `operation`; does not block. After an abort it is over at once, with the reason.
  void Start(std::shared_ptr<MpiOperation> operation);
  bool Done(const MpiOperation& operation);
  // Its result; DeadlineExceeded, without a message, when `deadline` passes first.
  absl::Status Await(const MpiOperation& operation, absl::Duration deadline);
  // When it was over; now, if the world was aborted first.
  std::chrono::steady_clock::time_point EndedAt(const MpiOperation& operation);

  // Ends every operation, in flight or later, on every rank, with Aborted and the message of
  // `reason`. The first call counts. Does not block.
  void Abort(const absl::Status& reason);

  // A number for the messages of a new group: one above every number that a member has used, which
  // is what its members agree on by exchanging next_group_id first. Used by one thread at a time.
  int next_group_id() const { return next_group_id_; }
  void set_next_group_id(int id) { next_group_id_ = id; }

 private:
  struct Mpi;  // hides mpi.h: requests and what they belong to
  MpiEngine();

  void Run();
  // Steps of Run, on the communication thread.
  void Post(const std::shared_ptr<MpiOperation>& operation);
  bool Poll();
  bool PollMessages();
  bool AdvanceChannels();
  void FinishRound(const std::shared_ptr<MpiOperation>& operation);
  void Finish(const std::shared_ptr<MpiOperation>& operation, absl::Status result);
  void Fail(const std::shared_ptr<MpiOperation>& operation, const std::string& reason);
  void GiveUp(const absl::Status& reason);
  void SendAbort(const std::string& reason);
  void ListenForAbort();
  void Close();
  bool HasWorkInFlight() const;
  absl::Status FindNodes();

  int rank_ = 0, size_ = 1;
  std::vector<int> nodes_;  // by world rank
  Options options_;
  int next_group_id_ = 1;
  // Of the communication thread.
  std::unique_ptr<Mpi> mpi_;
  std::vector<std::shared_ptr<SharedChannel>> busy_channels_;

  std::mutex mutex_;
  std::condition_variable changed_;  // an operation is over, or the world was aborted
  std::condition_variable work_;     // there is something to do
  std::deque<std::shared_ptr<MpiOperation>> started_;  // not posted yet
  absl::Status aborted_;
  bool tell_others_ = false;  // of an abort that began here
  bool stopping_ = false;
  std::thread thread_;  // last: runs on everything above
};

}  // namespace meshfold::comm
