// Communicator: one rank's end of a group of ranks that exchange tensors.
//
// The public functions check arguments once, so every transport refuses the same mistakes in the
// same words; implementations override the Do functions and see valid arguments only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "comm/stats.h"
#include "comm/work.h"
#include "core/tensor/tensor.h"

namespace meshfold::comm {

// Who is in a group, from the view of one of them.
struct CommunicatorInfo {
  std::string name = "world";  // in messages and traffic counters: "dp", "ep"
  int rank = 0;                // of this process in the group, from 0
  int size = 1;
  absl::Duration deadline = absl::Minutes(10);    // of waits that are given none
  std::string transport = "";                     // how bytes travel, and why not faster, for logs
  std::shared_ptr<TrafficStats> stats = nullptr;  // of the world; null: new ones
};

// Rules of all operations:
// - They are asynchronous: the returned Work, owned by the caller, must be waited on. An error is
//   returned at once, and nothing is sent, when the arguments do not fit together: the op, the
//   group and both values. An error of the transport or of another rank comes from the Work.
// - Collective operations are called by every rank of the group in the same order with matching
//   shapes and dtypes; tensors of zero elements take part.
// - Tensors are contiguous and either disjoint or, where stated, in place.
// - Sums take f32, i32 or i64 and add in ascending order of rank, so that an element's sum does not
//   depend on how a tensor was cut; 16-bit floats are storage, not summands.
// One thread issues operations on a communicator; Abort may be called from any.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return info_.rank; }
  int size() const { return info_.size; }
  const std::string& name() const { return info_.name; }
  absl::Duration deadline() const { return info_.deadline; }
  const std::string& transport() const { return info_.transport; }
  // This rank's counters of all groups of the world that this one stems from.
  const std::shared_ptr<TrafficStats>& stats() const { return info_.stats; }
  // Operations issued here so far; the next one carries this number in messages. Equal on all ranks
  // of a group that uses collectives only.
  int64_t sequence() const { return sequence_; }

  // out = sum over ranks of in. Same shape; in place when both are the same tensor. Collective.
  absl::StatusOr<std::unique_ptr<Work>> AllReduce(const Tensor& in, const Tensor& out);

  // out = the ranks' `in` one after the other: out has size() times the elements of `in`. In place
  // when `in` is part rank() of `out`. Any dtype. Collective.
  absl::StatusOr<std::unique_ptr<Work>> AllGather(const Tensor& in, const Tensor& out);

  // out = part rank() of the sum over ranks of in: `in` has size() times the elements of `out`. In
  // place when `out` is part rank() of `in`, whose other parts are then unspecified. Collective.
  absl::StatusOr<std::unique_ptr<Work>> ReduceScatter(const Tensor& in, const Tensor& out);

  // Sends the first in_rows[0] rows of dim 0 of `in` to rank 0, the next in_rows[1] to rank 1, and
  // so on; `out` receives out_rows[r] rows from rank r, in order of rank. in_rows[r] here equals
  // out_rows[rank()] on rank r, which is checked here for r = rank(); both have size() entries and
  // add up to dim 0. Any dtype, disjoint tensors, equal other dims. Collective.
  absl::StatusOr<std::unique_ptr<Work>> AllToAllV(const Tensor& in,
                                                  absl::Span<const int64_t> in_rows,
                                                  const Tensor& out,
                                                  absl::Span<const int64_t> out_rows);

  // data of rank `root` to all. Any dtype. Collective.
  absl::StatusOr<std::unique_ptr<Work>> Broadcast(const Tensor& data, int root);

  // To and from another rank, never itself. Messages between two ranks of one communicator arrive
  // in order of sending; a receive has the elements and dtype of its send.
  absl::StatusOr<std::unique_ptr<Work>> Send(const Tensor& data, int to);
  absl::StatusOr<std::unique_ptr<Work>> Recv(const Tensor& data, int from);

  // Over once every rank has issued it. Collective.
  absl::StatusOr<std::unique_ptr<Work>> Barrier();

  // Groups the ranks by `color`; in a group they are ordered by `key`, then by rank here. A
  // negative color takes part but joins no group and gets null. Collective; blocks for at most
  // deadline().
  absl::StatusOr<std::shared_ptr<Communicator>> Split(int color, int key, absl::string_view name);

  // Ends all communication of the world this communicator stems from, on every rank: operations in
  // flight and later ones fail with Aborted and the message of `reason`. Only the first call of a
  // world counts. Thread-safe, does not block.
  virtual void Abort(const absl::Status& reason) = 0;

 protected:
  explicit Communicator(CommunicatorInfo info);

  virtual absl::StatusOr<std::unique_ptr<Work>> DoAllReduce(std::string what, const Tensor& in,
                                                            const Tensor& out) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoAllGather(std::string what, const Tensor& in,
                                                            const Tensor& out) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoReduceScatter(std::string what, const Tensor& in,
                                                                const Tensor& out) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoAllToAllV(std::string what, const Tensor& in,
                                                            absl::Span<const int64_t> in_rows,
                                                            const Tensor& out,
                                                            absl::Span<const int64_t> out_rows) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoBroadcast(std::string what, const Tensor& data,
                                                            int root) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoSend(std::string what, const Tensor& data,
                                                       int to) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoRecv(std::string what, const Tensor& data,
                                                       int from) = 0;
  virtual absl::StatusOr<std::unique_ptr<Work>> DoBarrier(std::string what) = 0;
  virtual absl::StatusOr<std::shared_ptr<Communicator>> DoSplit(int color, int key,
                                                                absl::string_view name) = 0;

 private:
  absl::Status Check(absl::string_view op, const Tensor& tensor) const;
  absl::Status CheckPair(absl::string_view op, const Tensor& in, const Tensor& out) const;
  absl::Status CheckSum(absl::string_view op, const Tensor& tensor) const;
  absl::Status CheckParts(absl::string_view op, const Tensor& part, const Tensor& whole,
                          absl::string_view part_name, absl::string_view whole_name) const;
  absl::Status CheckRows(absl::string_view op, const Tensor& tensor, absl::Span<const int64_t> rows,
                         absl::string_view name) const;
  absl::Status CheckPeer(absl::string_view op, int peer) const;
  absl::Status Refuse(absl::string_view op, absl::string_view message) const;
  // Starts operation `op` under its name in messages, and counts it.
  absl::StatusOr<std::unique_ptr<Work>> Issue(
      absl::string_view op,
      absl::FunctionRef<absl::StatusOr<std::unique_ptr<Work>>(std::string what)> start);

  const CommunicatorInfo info_;
  int64_t sequence_ = 0;
};

}  // namespace meshfold::comm
