#include "comm/thread_world.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/deadline_wait.h"
#include "comm/host_bytes.h"
#include "comm/rank_order_sum.h"
#include "comm/shared_plan.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {
namespace {

// What all groups of a world share. One mutex guards every group's bookkeeping; bytes move outside
// it.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  absl::Status aborted;  // OK until Abort
  std::function<void(int)> before_operation;
};

// Something that several ranks wait for. Guarded by the world's mutex.
struct Operation {
  bool done = false;
  absl::Status result;
  std::chrono::steady_clock::time_point ended;
};

// One rank's part in a collective.
struct Post {
  enum class Kind {
    kAllReduce,
    kAllGather,
    kReduceScatter,
    kAllToAllV,
    kBroadcast,
    kBarrier,
    kSplit
  };
  Kind kind = Kind::kBarrier;
  std::string what;
  Tensor in, out;
  std::vector<int64_t> in_rows, out_rows;  // of kAllToAllV
  int root = 0;                            // of kBroadcast
  int color = 0, key = 0;                  // of kSplit
};

struct Group;

struct Collective : Operation {
  std::vector<Post> posts;  // by rank
  int arrived = 0;
  // Results of kSplit, by rank here: the new group, null for a negative color, and the rank in it.
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<int> ranks;
};

struct Message : Operation {
  Tensor sent, received;
  std::string send_what, receive_what;
};

// Guarded by the world's mutex, apart from `world` and `size`.
struct Group {
  std::shared_ptr<World> world;
  int size = 1;
  std::map<int64_t, std::shared_ptr<Collective>> collectives;  // by number, until all have arrived
  // Of each (from, to), those whose other side has not come yet: of one kind at a time.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sends, receives;
};

// --- carrying out a complete collective -------------------------------------------------------

absl::Status Mismatch(const Post& a, const Post& b, absl::string_view a_has,
                      absl::string_view b_has) {
  return absl::InvalidArgumentError(
      absl::StrCat("[", a.what, "] has ", a_has, ", [", b.what, "] has ", b_has));
}

// Of tensors that must agree in everything between ranks.
absl::Status CheckAgreement(const std::vector<Post>& posts) {
  const Post& first = posts[0];
  for (const Post& post : posts) {
    if (post.kind != first.kind) {
      return absl::InvalidArgumentError(absl::StrCat("[", first.what, "] meets [", post.what,
                                                     "]: ranks call different operations"));
    }
    if (!first.in.defined()) continue;
    const bool same_size =
        post.kind == Post::Kind::kAllToAllV || post.in.numel() == first.in.numel();
    if (post.in.dtype() != first.in.dtype() || !same_size) {
      return Mismatch(first, post, first.in.ToString(), post.in.ToString());
    }
    if (post.root != first.root) {
      return Mismatch(first, post, absl::StrCat("root ", first.root),
                      absl::StrCat("root ", post.root));
    }
  }
  return absl::OkStatus();
}

void AllReduceAll(const std::vector<Post>& posts) {
  std::vector<const void*> parts;
  std::vector<void*> outs;
  for (const Post& post : posts) {
    parts.push_back(post.in.raw());
    outs.push_back(post.out.raw());
  }
  SumInRankOrder(posts[0].in.dtype(), parts, 0, posts[0].in.numel(), outs);
}

void ReduceScatterAll(const std::vector<Post>& posts) {
  const int64_t bytes = posts[0].out.nbytes();
  for (size_t r = 0; r < posts.size(); ++r) {
    std::vector<const void*> parts;
    for (const Post& post : posts)
      parts.push_back(Bytes(post.in) + static_cast<int64_t>(r) * bytes);
    SumInRankOrder(posts[r].out.dtype(), parts, 0, posts[r].out.numel(), {posts[r].out.raw()});
  }
}

void AllGatherAll(const std::vector<Post>& posts) {
  const int64_t bytes = posts[0].in.nbytes();
  for (const Post& to : posts) {
    char* at = Bytes(to.out);
    for (const Post& from : posts) {
      CopyBytes(from.in.raw(), at, bytes);
      at += bytes;
    }
  }
}

void BroadcastAll(const std::vector<Post>& posts) {
  const Tensor& data = posts[static_cast<size_t>(posts[0].root)].in;
  for (const Post& post : posts) CopyBytes(data.raw(), post.in.raw(), data.nbytes());
}

absl::Status AllToAllVAll(const std::vector<Post>& posts) {
  const auto row_of = [](const Tensor& x) { return x.shape().dims().subspan(1); };
  for (const Post& from : posts) {
    if (row_of(from.in) != row_of(posts[0].in)) {
      return Mismatch(posts[0], from, posts[0].in.ToString(), from.in.ToString());
    }
    for (const Post& to : posts) {
      const size_t source = static_cast<size_t>(&from - posts.data());
      const size_t target = static_cast<size_t>(&to - posts.data());
      if (from.in_rows[target] != to.out_rows[source]) {
        return absl::InvalidArgumentError(
            absl::StrCat("[", from.what, "] sends ", from.in_rows[target], " rows to rank ", target,
                         ", [", to.what, "] expects ", to.out_rows[source], " from rank ", source));
      }
    }
  }
  const int64_t row_bytes = RowBytes(posts[0].in);
  std::vector<int64_t> sent(posts.size(), 0);  // rows of each sender that have left
  for (size_t target = 0; target < posts.size(); ++target) {
    char* at = Bytes(posts[target].out);
    for (size_t source = 0; source < posts.size(); ++source) {
      const int64_t rows = posts[source].in_rows[target];
      CopyBytes(Bytes(posts[source].in) + sent[source] * row_bytes, at, rows * row_bytes);
      sent[source] += rows;
      at += rows * row_bytes;
    }
  }
  return absl::OkStatus();
}

void SplitAll(const std::shared_ptr<World>& world, Collective& split) {
  const int size = static_cast<int>(split.posts.size());
  split.groups.resize(split.posts.size());
  split.ranks.assign(split.posts.size(), 0);
  std::map<int, std::vector<std::pair<int, int>>> members;  // by color: (key, rank)
  for (int rank = 0; rank < size; ++rank) {
    const Post& post = split.posts[static_cast<size_t>(rank)];
    if (post.color >= 0) members[post.color].push_back({post.key, rank});
  }
  for (auto& [color, of_color] : members) {
    std::sort(of_color.begin(), of_color.end());
    auto group = std::make_shared<Group>();
    group->world = world;
    group->size = static_cast<int>(of_color.size());
    for (size_t i = 0; i < of_color.size(); ++i) {
      const size_t rank = static_cast<size_t>(of_color[i].second);
      split.groups[rank] = group;
      split.ranks[rank] = static_cast<int>(i);
    }
  }
}

absl::Status CarryOut(const std::shared_ptr<World>& world, Collective& collective) {
  const std::vector<Post>& posts = collective.posts;
  MF_RETURN_IF_ERROR(CheckAgreement(posts));
  switch (posts[0].kind) {
    case Post::Kind::kAllReduce:
      AllReduceAll(posts);
      break;
    case Post::Kind::kAllGather:
      AllGatherAll(posts);
      break;
    case Post::Kind::kReduceScatter:
      ReduceScatterAll(posts);
      break;
    case Post::Kind::kAllToAllV:
      return AllToAllVAll(posts);
    case Post::Kind::kBroadcast:
      BroadcastAll(posts);
      break;
    case Post::Kind::kBarrier:
      break;
    case Post::Kind::kSplit:
      SplitAll(world, collective);
      break;
  }
  return absl::OkStatus();
}

absl::Status CarryOut(const Message& message) {
  const Tensor &sent = message.sent, &received = message.received;
  if (sent.dtype() != received.dtype() || sent.numel() != received.numel()) {
    return absl::InvalidArgumentError(absl::StrCat("[", message.send_what, "] sends ",
                                                   sent.ToString(), ", [", message.receive_what,
                                                   "] expects ", received.ToString()));
  }
  CopyBytes(sent.raw(), received.raw(), sent.nbytes());
  return absl::OkStatus();
}

// What a rank would send by messages: here the last rank to come moves everything.
int64_t SentBytes(const Post& post, int rank, int size) {
  const auto planned = [&](SharedKind kind, int64_t bytes) {
    return SharedPlan::Uncut(kind, bytes, size).SentBytes(rank, post.root);
  };
  switch (post.kind) {
    case Post::Kind::kAllReduce:
      return planned(SharedKind::kAllReduce, post.in.nbytes());
    case Post::Kind::kReduceScatter:
      return planned(SharedKind::kReduceScatter, post.out.nbytes());
    case Post::Kind::kAllGather:
      return planned(SharedKind::kAllGather, post.in.nbytes());
    case Post::Kind::kBroadcast:
      return planned(SharedKind::kBroadcast, post.in.nbytes());
    case Post::Kind::kAllToAllV:
      return post.in.nbytes() - post.in_rows[static_cast<size_t>(rank)] * RowBytes(post.in);
    case Post::Kind::kBarrier:
    case Post::Kind::kSplit:
      return 0;
  }
  return 0;
}

// --- waiting ----------------------------------------------------------------------------------

void Finish(World& world, Operation& operation, absl::Status result) {
  std::lock_guard<std::mutex> lock(world.mutex);
  operation.done = true;
  operation.ended = std::chrono::steady_clock::now();
  operation.result = std::move(result);
  world.changed.notify_all();
}

// The operation's result, or Aborted, or DeadlineExceeded.
absl::Status Await(World& world, const Operation& operation, absl::Duration deadline) {
  const auto is_over = [&] { return operation.done || !world.aborted.ok(); };
  std::unique_lock<std::mutex> lock(world.mutex);
  if (!WaitAtMost(deadline, world.changed, lock, is_over)) return absl::DeadlineExceededError("");
  return operation.done ? operation.result : world.aborted;
}

class ThreadWork final : public Work {
 public:
  ThreadWork(std::string what, absl::Duration deadline, std::vector<Tensor> buffers,
             int64_t sent_bytes, std::shared_ptr<World> world, std::shared_ptr<Operation> operation)
      : Work(std::move(what), deadline, std::move(buffers), sent_bytes),
        world_(std::move(world)),
        operation_(std::move(operation)) {}

  bool Done() override {
    std::lock_guard<std::mutex> lock(world_->mutex);
    return operation_->done || !world_->aborted.ok();
  }

 private:
  absl::Status DoWait(absl::Duration deadline) override {
    return Await(*world_, *operation_, deadline);
  }
  Time EndedAt() override {
    std::lock_guard<std::mutex> lock(world_->mutex);
    return operation_->done ? operation_->ended : std::chrono::steady_clock::now();
  }

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Operation> operation_;
};

// --- one rank's end ---------------------------------------------------------------------------

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(CommunicatorInfo info, int world_rank, std::shared_ptr<Group> group)
      : Communicator(std::move(info)), world_rank_(world_rank), group_(std::move(group)) {}

  void Abort(const absl::Status& reason) override {
    std::lock_guard<std::mutex> lock(world().mutex);
    if (world().aborted.ok()) world().aborted = absl::AbortedError(reason.message());
    world().changed.notify_all();
  }

 private:
  absl::StatusOr<std::unique_ptr<Work>> DoAllReduce(std::string what, const Tensor& in,
                                                    const Tensor& out) override {
    return Start(Post::Kind::kAllReduce, std::move(what), in, out);
  }
  absl::StatusOr<std::unique_ptr<Work>> DoAllGather(std::string what, const Tensor& in,
                                                    const Tensor& out) override {
    return Start(Post::Kind::kAllGather, std::move(what), in, out);
  }
  absl::StatusOr<std::unique_ptr<Work>> DoReduceScatter(std::string what, const Tensor& in,
                                                        const Tensor& out) override {
    return Start(Post::Kind::kReduceScatter, std::move(what), in, out);
  }
  absl::StatusOr<std::unique_ptr<Work>> DoAllToAllV(std::string what, const Tensor& in,
                                                    absl::Span<const int64_t> in_rows,
                                                    const Tensor& out,
                                                    absl::Span<const int64_t> out_rows) override {
    Post post;
    post.kind = Post::Kind::kAllToAllV;
    post.what = std::move(what);
    post.in = in;
    post.out = out;
    post.in_rows.assign(in_rows.begin(), in_rows.end());
    post.out_rows.assign(out_rows.begin(), out_rows.end());
    return Start(std::move(post));
  }
  absl::StatusOr<std::unique_ptr<Work>> DoBroadcast(std::string what, const Tensor& data,
                                                    int root) override {
    Post post;
    post.kind = Post::Kind::kBroadcast;
    post.what = std::move(what);
    post.in = data;
    post.root = root;
    return Start(std::move(post));
  }
  absl::StatusOr<std::unique_ptr<Work>> DoBarrier(std::string what) override {
    return Start(Post::Kind::kBarrier, std::move(what), {}, {});
  }

  absl::StatusOr<std::unique_ptr<Work>> DoSend(std::string what, const Tensor& data,
                                               int to) override {
    return StartMessage(std::move(what), data, rank(), to);
  }
  absl::StatusOr<std::unique_ptr<Work>> DoRecv(std::string what, const Tensor& data,
                                               int from) override {
    return StartMessage(std::move(what), data, from, rank());
  }

  absl::StatusOr<std::shared_ptr<Communicator>> DoSplit(int color, int key,
                                                        absl::string_view name) override {
    Post post;
    post.kind = Post::Kind::kSplit;
    post.what = absl::StrCat("Split of group '", this->name(), "', rank ", rank(), " of ", size());
    post.color = color;
    post.key = key;
    const std::string what = post.what;
    MF_RETURN_IF_ERROR(Enter(what, Tensor()));
    MF_ASSIGN_OR_RETURN(std::shared_ptr<Collective> split, Arrive(std::move(post)));
    const absl::Status status = Await(world(), *split, deadline());
    if (absl::IsDeadlineExceeded(status)) {
      return absl::DeadlineExceededError(
          absl::StrCat("[", what, "] is not over after ", absl::FormatDuration(deadline())));
    }
    MF_RETURN_IF_ERROR(status);
    const size_t me = static_cast<size_t>(rank());
    const std::shared_ptr<Group>& group = split->groups[me];
    if (group == nullptr) return std::shared_ptr<Communicator>();
    const CommunicatorInfo info{std::string(name), split->ranks[me], group->size,
                                deadline(),        "threads",        stats()};
    return std::shared_ptr<Communicator>(
        std::make_shared<ThreadCommunicator>(info, world_rank_, group));
  }

  World& world() const { return *group_->world; }

  absl::Status Enter(absl::string_view what, const Tensor& tensor) {
    if (tensor.defined() && tensor.device() != DeviceKind::kHost) {
      return absl::InvalidArgumentError(
          absl::StrCat("[", what, "] a world of threads moves host memory only"));
    }
    if (world().before_operation) world().before_operation(world_rank_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Work>> Start(Post::Kind kind, std::string what, const Tensor& in,
                                              const Tensor& out) {
    Post post;
    post.kind = kind;
    post.what = std::move(what);
    post.in = in;
    post.out = out;
    return Start(std::move(post));
  }

  absl::StatusOr<std::unique_ptr<Work>> Start(Post post) {
    MF_RETURN_IF_ERROR(Enter(post.what, post.in));
    std::string what = post.what;
    std::vector<Tensor> buffers = {post.in, post.out};
    const int64_t sent_bytes = SentBytes(post, rank(), size());
    absl::StatusOr<std::shared_ptr<Collective>> collective = Arrive(std::move(post));
    if (!collective.ok()) {
      return std::make_unique<FinishedWork>(std::move(what), collective.status());
    }
    return std::make_unique<ThreadWork>(std::move(what), deadline(), std::move(buffers), sent_bytes,
                                        group_->world, *std::move(collective));
  }

  // This rank's side of a message: the other side's call carries it out if that comes later.
  absl::StatusOr<std::unique_ptr<Work>> StartMessage(std::string what, const Tensor& data, int from,
                                                     int to) {
    MF_RETURN_IF_ERROR(Enter(what, data));
    const bool is_send = from == rank();
    bool is_complete = false;
    std::shared_ptr<Message> message;
    {
      std::lock_guard<std::mutex> lock(world().mutex);
      if (!world().aborted.ok()) {
        return std::make_unique<FinishedWork>(std::move(what), world().aborted);
      }
      auto& waiting = (is_send ? group_->receives : group_->sends)[{from, to}];
      auto& own = (is_send ? group_->sends : group_->receives)[{from, to}];
      is_complete = !waiting.empty();
      if (is_complete) {
        message = std::move(waiting.front());
        waiting.pop_front();
      } else {
        message = std::make_shared<Message>();
        own.push_back(message);
      }
      (is_send ? message->sent : message->received) = data;
      (is_send ? message->send_what : message->receive_what) = what;
    }
    if (is_complete) Finish(world(), *message, CarryOut(*message));
    return std::make_unique<ThreadWork>(std::move(what), deadline(), std::vector<Tensor>{data},
                                        is_send ? data.nbytes() : 0, group_->world,
                                        std::move(message));
  }

  // Joins this group's next collective, and carries it out as its last rank. Aborted when the world
  // was.
  absl::StatusOr<std::shared_ptr<Collective>> Arrive(Post post) {
    std::shared_ptr<Collective> collective;
    const int64_t number = next_collective_++;
    {
      std::lock_guard<std::mutex> lock(world().mutex);
      MF_RETURN_IF_ERROR(world().aborted);
      std::shared_ptr<Collective>& at = group_->collectives[number];
      if (at == nullptr) {
        at = std::make_shared<Collective>();
        at->posts.resize(static_cast<size_t>(size()));
      }
      collective = at;
      collective->posts[static_cast<size_t>(rank())] = std::move(post);
      if (++collective->arrived < size()) return collective;
      group_->collectives.erase(number);
    }
    absl::Status result = CarryOut(group_->world, *collective);
    collective->posts.clear();
    Finish(world(), *collective, std::move(result));
    return collective;
  }

  const int world_rank_;
  const std::shared_ptr<Group> group_;
  int64_t next_collective_ = 0;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> MakeThreadWorld(const ThreadWorldOptions& options) {
  MF_CHECK_GE(options.size, 1);
  auto group = std::make_shared<Group>();
  group->world = std::make_shared<World>();
  group->world->before_operation = options.before_operation;
  group->size = options.size;
  std::vector<std::shared_ptr<Communicator>> ends;
  for (int rank = 0; rank < options.size; ++rank) {
    const CommunicatorInfo info{"world", rank, options.size, options.deadline, "threads"};
    ends.push_back(std::make_shared<ThreadCommunicator>(info, rank, group));
  }
  return ends;
}

absl::Status RunThreadWorld(const ThreadWorldOptions& options,
                            const std::function<absl::Status(Communicator&)>& body) {
  const std::vector<std::shared_ptr<Communicator>> ends = MakeThreadWorld(options);
  std::mutex mutex;
  absl::Status first_failure;  // guarded by mutex
  const ExecContext* caller = HasCurrentContext() ? &CurrentContext() : nullptr;
  const auto run_rank = [&](Communicator& end) {
    ExecContext context = caller != nullptr ? *caller : ExecContext();
    context.rank_tag = absl::StrCat("rank ", end.rank());
    std::unique_ptr<ScopedExecContext> scope;
    if (caller != nullptr) scope = std::make_unique<ScopedExecContext>(context);
    absl::Status status;
    try {
      status = body(end);
    } catch (const StatusError& error) {
      status = error.status();
    }
    if (status.ok()) return;
    const absl::Status tagged(status.code(),
                              absl::StrCat("rank ", end.rank(), ": ", status.message()));
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (first_failure.ok()) first_failure = tagged;
    }
    end.Abort(tagged);
  };
  std::vector<std::thread> threads;
  for (const std::shared_ptr<Communicator>& end : ends) {
    threads.emplace_back([&run_rank, &end] { run_rank(*end); });
  }
  for (std::thread& thread : threads) thread.join();
  return first_failure;
}

}  // namespace meshfold::comm
