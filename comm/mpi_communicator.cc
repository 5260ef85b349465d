#include "comm/mpi_communicator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "comm/host_bytes.h"
#include "comm/rank_order_sum.h"
#include "comm/share_window.h"
#include "comm/shared_channel.h"
#include "comm/wait.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"

namespace meshfold::comm {
namespace {

using Direction = MpiTransfer::Direction;

// Tags keep apart the groups of a world, the collectives in flight in a group, and their rounds:
//   group (13 bits) | number of the collective (16 bits) | round (2 bits)
// Messages of Send and Recv have round 3 and number 0; they match in order of posting.
constexpr int kMaxGroups = (1 << 13) - 1;
constexpr int kMessageRound = 3;
int TagOf(int group, int64_t number, int round) {
  return (group << 18) | (static_cast<int>(number & 0xffff) << 2) | round;
}

class MpiWork final : public Work {
 public:
  MpiWork(std::string what, absl::Duration deadline, std::shared_ptr<MpiEngine> engine,
          std::shared_ptr<MpiOperation> operation, int64_t sent_bytes)
      // The operation keeps the buffers, beyond a missed deadline too.
      : Work(std::move(what), deadline, {}, sent_bytes),
        engine_(std::move(engine)),
        operation_(std::move(operation)) {}

  bool Done() override { return engine_->Done(*operation_); }

 private:
  absl::Status DoWait(absl::Duration deadline) override {
    return engine_->Await(*operation_, deadline);
  }
  Time EndedAt() override { return engine_->EndedAt(*operation_); }

  const std::shared_ptr<MpiEngine> engine_;
  const std::shared_ptr<MpiOperation> operation_;
};

// A rank's share of a sum: `count` elements at `own` here, and as many from each other rank.
struct PartSum {
  DType dtype = DType::kF32;
  char* own = nullptr;
  int64_t count = 0;
  Tensor received;  // room for those of the others, in order of rank
  void* out = nullptr;
};

struct Piece {
  char* data = nullptr;
  int64_t bytes = 0;
};

class MpiCommunicator final : public Communicator {
 public:
  // `channel` is null where everything goes by messages.
  MpiCommunicator(const MpiGroupWorld& world, MpiGroup group,
                  std::shared_ptr<SharedChannel> channel)
      : Communicator(std::move(group.info)),
        world_(world),
        engine_(world.engine),
        ranks_(std::move(group.ranks)),
        group_(group.number),
        channel_(std::move(channel)) {}

  void Abort(const absl::Status& reason) override { engine_->Abort(reason); }

 private:
  absl::StatusOr<std::unique_ptr<Work>> DoAllReduce(std::string what, const Tensor& in,
                                                    const Tensor& out) override {
    if (channel_ != nullptr) {
      return StartShared(SharedKind::kAllReduce, std::move(what), in, out, in.nbytes());
    }
    const SharedPlan plan = SharedPlan::Uncut(SharedKind::kAllReduce, in.nbytes(), size());
    const auto piece_of = [&](const Tensor& tensor, int peer) {
      const ByteRange part = plan.Part(0, peer);
      return Piece{Bytes(tensor) + part.begin, part.size()};
    };
    const Piece own = piece_of(in, rank());
    const Tensor received = Scratch(own.bytes);
    auto operation = Begin(std::move(what), {in, out, received});
    operation->rounds.push_back(SumRound({in.dtype(), own.data, own.bytes / SizeOf(in.dtype()),
                                          received, piece_of(out, rank()).data},
                                         [&](int peer) { return piece_of(in, peer); }));
    if (!plan.gathers()) return StartCollective(std::move(operation));
    MpiOperation::Round gather;
    ForEachPeer([&](int peer) {
      AddSend(gather, peer, 1, piece_of(out, rank()));
      AddReceive(gather, peer, 1, piece_of(out, peer));
    });
    operation->rounds.push_back(std::move(gather));
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoAllGather(std::string what, const Tensor& in,
                                                    const Tensor& out) override {
    const int64_t bytes = in.nbytes();
    if (channel_ != nullptr) {
      return StartShared(SharedKind::kAllGather, std::move(what), in, out, bytes);
    }
    auto operation = Begin(std::move(what), {in, out});
    MpiOperation::Round round;
    ForEachPeer([&](int peer) {
      AddSend(round, peer, 0, {Bytes(in), bytes});
      AddReceive(round, peer, 0, {Bytes(out) + peer * bytes, bytes});
    });
    CopyBytes(Bytes(in), Bytes(out) + rank() * bytes, bytes);
    operation->rounds = {std::move(round)};
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoReduceScatter(std::string what, const Tensor& in,
                                                        const Tensor& out) override {
    const int64_t bytes = out.nbytes();
    if (channel_ != nullptr) {
      return StartShared(SharedKind::kReduceScatter, std::move(what), in, out, bytes);
    }
    const Tensor received = Scratch(bytes);
    auto operation = Begin(std::move(what), {in, out, received});
    operation->rounds.push_back(SumRound(
        {in.dtype(), Bytes(in) + rank() * bytes, out.numel(), received, out.raw()}, [&](int peer) {
          return Piece{Bytes(in) + peer * bytes, bytes};
        }));
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoAllToAllV(std::string what, const Tensor& in,
                                                    absl::Span<const int64_t> in_rows,
                                                    const Tensor& out,
                                                    absl::Span<const int64_t> out_rows) override {
    const int64_t row_bytes = RowBytes(in);
    auto operation = Begin(std::move(what), {in, out});
    MpiOperation::Round round;
    char *from = Bytes(in), *to = Bytes(out);
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t sent = in_rows[static_cast<size_t>(peer)] * row_bytes;
      const int64_t received = out_rows[static_cast<size_t>(peer)] * row_bytes;
      if (peer == rank()) {
        CopyBytes(from, to, sent);
      } else {
        AddSend(round, peer, 0, {from, sent});
        AddReceive(round, peer, 0, {to, received});
      }
      from += sent;
      to += received;
    }
    operation->rounds = {std::move(round)};
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoBroadcast(std::string what, const Tensor& data,
                                                    int root) override {
    if (channel_ != nullptr) {
      return StartShared(SharedKind::kBroadcast, std::move(what), data, data, data.nbytes(), root);
    }
    auto operation = Begin(std::move(what), {data});
    MpiOperation::Round round;
    if (rank() == root) {
      ForEachPeer([&](int peer) { AddSend(round, peer, 0, {Bytes(data), data.nbytes()}); });
    } else {
      AddReceive(round, root, 0, {Bytes(data), data.nbytes()});
    }
    operation->rounds = {std::move(round)};
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoBarrier(std::string what) override {
    if (channel_ != nullptr) return StartShared(SharedKind::kBarrier, std::move(what), {}, {}, 0);
    auto operation = Begin(std::move(what), {});
    MpiOperation::Round round;
    ForEachPeer([&](int peer) {
      AddSend(round, peer, 0, {nullptr, 0});
      AddReceive(round, peer, 0, {nullptr, 0});
    });
    operation->rounds = {std::move(round)};
    return StartCollective(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> DoSend(std::string what, const Tensor& data,
                                               int to) override {
    return StartMessage(std::move(what), data, Direction::kSend, to);
  }
  absl::StatusOr<std::unique_ptr<Work>> DoRecv(std::string what, const Tensor& data,
                                               int from) override {
    return StartMessage(std::move(what), data, Direction::kReceive, from);
  }

  absl::StatusOr<std::shared_ptr<Communicator>> DoSplit(int color, int key,
                                                        absl::string_view name) override {
    // Everybody's color, key and first free group number: all that a rank needs to see its group.
    const Tensor own = Tensor::Contiguous({3}, DType::kI64, SystemHostAllocator());
    const Tensor all = Tensor::Contiguous({size(), 3}, DType::kI64, SystemHostAllocator());
    int64_t* mine = own.data<int64_t>();
    mine[0] = color;
    mine[1] = key;
    mine[2] = engine_->next_group_id();
    // Under no number: Split is none of the operations that are numbered and counted.
    std::string what =
        absl::StrCat("Split of group '", this->name(), "', rank ", rank(), " of ", size());
    MF_RETURN_IF_ERROR(WaitFor(DoAllGather(std::move(what), own, all), *this));
    int64_t group = 0;
    std::vector<std::pair<int64_t, int>> members;  // (key, rank here)
    for (int member = 0; member < size(); ++member) {
      const int64_t* of_member = all.row<int64_t>(member);
      group = std::max(group, of_member[2]);
      if (of_member[0] == color) members.push_back({of_member[1], member});
    }
    if (group > kMaxGroups) {
      return absl::ResourceExhaustedError(
          absl::StrCat("[Split] group '", std::string(name), "' would be number ", group,
                       "; an MPI world has ", kMaxGroups, " at most"));
    }
    // Groups of one split share no rank, so they may share a number.
    engine_->set_next_group_id(static_cast<int>(group) + 1);
    if (color < 0) return std::shared_ptr<Communicator>();
    std::sort(members.begin(), members.end());
    MpiGroup joined{{.name = std::string(name),
                     .size = static_cast<int>(members.size()),
                     .deadline = deadline(),
                     .stats = stats()},
                    {},
                    static_cast<int>(group)};
    for (const auto& [member_key, member] : members) {
      if (member == rank()) joined.info.rank = static_cast<int>(joined.ranks.size());
      joined.ranks.push_back(ranks_[static_cast<size_t>(member)]);
    }
    return JoinMpiGroup(world_, std::move(joined));
  }

  // Sends `sent(peer)` to each other rank, and adds what comes from them in order of rank.
  MpiOperation::Round SumRound(const PartSum& sum, absl::FunctionRef<Piece(int peer)> sent) const {
    const int64_t bytes = sum.count * SizeOf(sum.dtype);
    MpiOperation::Round round;
    std::vector<const void*> parts;
    char* place = Bytes(sum.received);
    for (int peer = 0; peer < size(); ++peer) {
      parts.push_back(peer == rank() ? sum.own : place);
      if (peer == rank()) continue;
      AddSend(round, peer, 0, sent(peer));
      AddReceive(round, peer, 0, {place, bytes});
      place += bytes;
    }
    round.then = [dtype = sum.dtype, parts = std::move(parts), count = sum.count, out = sum.out] {
      SumInRankOrder(dtype, parts, 0, count, {out});
    };
    return round;
  }

  // Room for `bytes` from each other rank.
  Tensor Scratch(int64_t bytes) const {
    return Tensor::Contiguous({(size() - 1) * bytes}, DType::kU8, SystemHostAllocator());
  }

  template <typename F>
  void ForEachPeer(F&& body) const {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) body(peer);
    }
  }

  std::shared_ptr<MpiOperation> Begin(std::string what, std::vector<Tensor> memory) const {
    auto operation = std::make_shared<MpiOperation>();
    operation->what = std::move(what);
    operation->memory = std::move(memory);
    return operation;
  }
  void AddSend(MpiOperation::Round& round, int peer, int number, Piece piece) const {
    Add(round, Direction::kSend, peer, TagOf(group_, next_collective_, number), piece);
  }
  void AddReceive(MpiOperation::Round& round, int peer, int number, Piece piece) const {
    Add(round, Direction::kReceive, peer, TagOf(group_, next_collective_, number), piece);
  }
  void Add(MpiOperation::Round& round, Direction direction, int peer, int tag, Piece piece) const {
    round.transfers.push_back(
        {direction, ranks_[static_cast<size_t>(peer)], tag, piece.data, piece.bytes});
  }

  absl::StatusOr<std::unique_ptr<Work>> StartCollective(std::shared_ptr<MpiOperation> operation) {
    ++next_collective_;
    return Start(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> StartShared(SharedKind kind, std::string what,
                                                    const Tensor& in, const Tensor& out,
                                                    int64_t bytes, int root = 0) const {
    auto operation = Begin(std::move(what), {in, out});
    operation->channel = channel_;
    operation->shared = {.kind = kind, .bytes = bytes, .root = root};
    const int64_t sent_bytes = channel_->PlanOf(operation->shared).SentBytes(rank(), root);
    if (in.defined()) {
      operation->shared.dtype = in.dtype();
      operation->shared.in = Bytes(in);
      operation->shared.out = Bytes(out);
    }
    return Start(std::move(operation), sent_bytes);
  }

  absl::StatusOr<std::unique_ptr<Work>> StartMessage(std::string what, const Tensor& data,
                                                     Direction direction, int peer) {
    auto operation = Begin(std::move(what), {data});
    MpiOperation::Round round;
    Add(round, direction, peer, TagOf(group_, 0, kMessageRound), {Bytes(data), data.nbytes()});
    operation->rounds = {std::move(round)};
    return Start(std::move(operation));
  }

  absl::StatusOr<std::unique_ptr<Work>> Start(std::shared_ptr<MpiOperation> operation) const {
    int64_t sent_bytes = 0;
    for (const MpiOperation::Round& round : operation->rounds) {
      for (const MpiTransfer& transfer : round.transfers) {
        if (transfer.direction == Direction::kSend) sent_bytes += transfer.bytes;
      }
    }
    return Start(std::move(operation), sent_bytes);
  }

  absl::StatusOr<std::unique_ptr<Work>> Start(std::shared_ptr<MpiOperation> operation,
                                              int64_t sent_bytes) const {
    std::string what = operation->what;
    engine_->Start(operation);
    return std::make_unique<MpiWork>(std::move(what), deadline(), engine_, std::move(operation),
                                     sent_bytes);
  }

  const MpiGroupWorld world_;
  const std::shared_ptr<MpiEngine> engine_;
  const std::vector<int> ranks_;
  const int group_;
  const std::shared_ptr<SharedChannel> channel_;
  int64_t next_collective_ = 0;
};

// Slots of a window: enough that a rank which gets a core only now and then finds work for its turn
// (measured: 8, of 256 KiB, which the second-level cache holds).
constexpr int kNumSlots = 8;

// Why `group` does not share memory, or nothing.
std::string RefuseWindow(const MpiGroupWorld& world, const MpiGroup& group) {
  if (group.ranks.size() == 1) return "one rank";
  if (!world.options.shared_memory) return "shared memory is off";
  for (int rank : group.ranks) {
    if (world.engine->node_of(rank) != world.engine->node_of(group.ranks[0])) {
      return "ranks are on several nodes";
    }
  }
  return "";
}

// Blocks while the ranks of `group` agree on a window.
absl::StatusOr<WindowOffer> OfferWindow(const MpiGroupWorld& world, MpiGroup group) {
  const int64_t slot_bytes = world.options.shared_bytes_per_rank / kNumSlots / 64 * 64;
  const SharedWindowShape shape{.num_ranks = group.info.size,
                                .num_slots = kNumSlots,
                                .slot_bytes = std::max<int64_t>(slot_bytes, 64 * group.info.size)};
  group.info.name = absl::StrCat("window of ", group.info.name);
  group.info.stats = nullptr;  // not the program's traffic
  MpiCommunicator by_messages(world, std::move(group), nullptr);
  absl::StatusOr<WindowOffer> offer = ShareWindow(by_messages, shape);
  // The group's operations will say so.
  if (absl::IsAborted(offer.status())) return WindowOffer{nullptr, "the world was aborted"};
  return offer;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> JoinMpiGroup(const MpiGroupWorld& world,
                                                           MpiGroup group) {
  std::shared_ptr<SharedChannel> channel;
  std::string refusal = RefuseWindow(world, group);
  if (refusal.empty()) {
    MF_ASSIGN_OR_RETURN(WindowOffer offer, OfferWindow(world, group));
    refusal = std::move(offer.refusal);
    if (offer.window != nullptr) {
      channel = std::make_shared<SharedChannel>(std::move(offer.window), group.info.rank);
    }
  }
  group.info.transport =
      refusal.empty() ? "shared memory" : absl::StrCat("MPI messages (", refusal, ")");
  return std::shared_ptr<Communicator>(
      std::make_shared<MpiCommunicator>(world, std::move(group), std::move(channel)));
}

}  // namespace meshfold::comm
