// The group of one rank, so that no code asks whether an axis is enabled: every operation copies
// its input to its output, or does nothing in place.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "comm/communicator.h"

namespace meshfold::comm {

// Work is over when it is returned, except that device tensors are copied in the order of the
// current context's stream. Send and Recv are refused: there is no other rank.
class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::string name = "world");

  void Abort(const absl::Status& reason) override;

 private:
  // What a world of one shares among its groups.
  struct World {
    std::mutex mutex;
    absl::Status aborted;  // guarded by mutex; OK until Abort
  };
  SelfCommunicator(std::string name, std::shared_ptr<World> world,
                   std::shared_ptr<TrafficStats> stats);

  absl::StatusOr<std::unique_ptr<Work>> DoAllReduce(std::string what, const Tensor& in,
                                                    const Tensor& out) override;
  absl::StatusOr<std::unique_ptr<Work>> DoAllGather(std::string what, const Tensor& in,
                                                    const Tensor& out) override;
  absl::StatusOr<std::unique_ptr<Work>> DoReduceScatter(std::string what, const Tensor& in,
                                                        const Tensor& out) override;
  absl::StatusOr<std::unique_ptr<Work>> DoAllToAllV(std::string what, const Tensor& in,
                                                    absl::Span<const int64_t> in_rows,
                                                    const Tensor& out,
                                                    absl::Span<const int64_t> out_rows) override;
  absl::StatusOr<std::unique_ptr<Work>> DoBroadcast(std::string what, const Tensor& data,
                                                    int root) override;
  absl::StatusOr<std::unique_ptr<Work>> DoSend(std::string what, const Tensor& data,
                                               int to) override;
  absl::StatusOr<std::unique_ptr<Work>> DoRecv(std::string what, const Tensor& data,
                                               int from) override;
  absl::StatusOr<std::unique_ptr<Work>> DoBarrier(std::string what) override;
  absl::StatusOr<std::shared_ptr<Communicator>> DoSplit(int color, int key,
                                                        absl::string_view name) override;

  absl::StatusOr<std::unique_ptr<Work>> Copy(std::string what, const Tensor& in, const Tensor& out);
  std::unique_ptr<Work> Finish(std::string what);
  absl::Status AbortedStatus();

  const std::shared_ptr<World> world_;
};

}  // namespace meshfold::comm
