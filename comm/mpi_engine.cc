#include "comm/mpi_engine.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/deadline_wait.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold::comm {
namespace {

constexpr int kAbortTag = 0;
constexpr int kMaxAbortBytes = 2048;  // below the eager limits, so that nobody has to receive it

// How long the thread sleeps between two looks at what is in flight: short while messages come,
// longer while none do, since a core that polls is taken from the rank's own products (measured:
// 500 to 1000 us where both cores compute). New operations wake it.
constexpr std::chrono::microseconds kShortestNap{20}, kLongestNap{500};
// Looks without a nap after something has arrived: a chain of small messages is not to wait.
constexpr int kEagerLooks = 50;
// Without an operation in flight there is only an abort of another rank to hear of.
constexpr std::chrono::milliseconds kIdleNap{50};
constexpr std::chrono::seconds kTimeToTell{1};

std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

}  // namespace

struct MpiEngine::Mpi {
  // A message in flight: requests[i] belongs to owners[i].
  struct Owner {
    std::shared_ptr<MpiOperation> operation;
    int64_t receives_bytes = -1;  // what a receive expects; -1: a send
    int peer = 0;
  };
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<MPI_Request> requests;
  std::vector<Owner> owners;
  MPI_Request abort_receive = MPI_REQUEST_NULL;
  std::vector<char> abort_text = std::vector<char>(kMaxAbortBytes);
  std::string sent_abort_text;
  std::vector<MPI_Request> abort_sends;
  bool gave_up = false;
  // Of MPI_Testsome.
  std::vector<int> indices;
  std::vector<MPI_Status> statuses;
};

MpiEngine::MpiEngine() : mpi_(std::make_unique<Mpi>()) {}

absl::StatusOr<std::unique_ptr<MpiEngine>> MpiEngine::Create(const Options& options) {
  MF_CHECK(options.max_message_bytes >= 1 &&
           options.max_message_bytes <= std::numeric_limits<int>::max());
  std::unique_ptr<MpiEngine> engine(new MpiEngine);
  engine->options_ = options;
  // Never freed: that is collective, and a world may end while others are still in it.
  if (int code = MPI_Comm_dup(MPI_COMM_WORLD, &engine->mpi_->comm); code != MPI_SUCCESS) {
    return absl::InternalError(absl::StrCat("MPI_Comm_dup: ", MpiErrorText(code)));
  }
  MPI_Comm_set_errhandler(engine->mpi_->comm, MPI_ERRORS_RETURN);
  MPI_Comm_rank(engine->mpi_->comm, &engine->rank_);
  MPI_Comm_size(engine->mpi_->comm, &engine->size_);
  MF_RETURN_IF_ERROR(engine->FindNodes());
  engine->ListenForAbort();
  engine->thread_ = std::thread([raw = engine.get()] { raw->Run(); });
  return engine;
}

// The first rank of a node stands for it.
absl::Status MpiEngine::FindNodes() {
  MPI_Comm node = MPI_COMM_NULL;
  if (int code = MPI_Comm_split_type(mpi_->comm, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node);
      code != MPI_SUCCESS) {
    return absl::InternalError(absl::StrCat("MPI_Comm_split_type: ", MpiErrorText(code)));
  }
  int first = rank_;
  MPI_Bcast(&first, 1, MPI_INT, 0, node);
  MPI_Comm_free(&node);
  nodes_.resize(static_cast<size_t>(size_));
  const int code = MPI_Allgather(&first, 1, MPI_INT, nodes_.data(), 1, MPI_INT, mpi_->comm);
  if (code == MPI_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("MPI_Allgather: ", MpiErrorText(code)));
}

MpiEngine::~MpiEngine() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
  if (options_.finalizes_mpi && aborted_.ok()) MPI_Finalize();
}

void MpiEngine::Start(std::shared_ptr<MpiOperation> operation) {
  MF_CHECK(!operation->rounds.empty() || operation->channel != nullptr) << " " << operation->what;
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) {
    operation->done = true;
    operation->ended = std::chrono::steady_clock::now();
    operation->result = aborted_;
    return;
  }
  started_.push_back(std::move(operation));
  work_.notify_all();
}

bool MpiEngine::Done(const MpiOperation& operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  return operation.done || !aborted_.ok();
}

absl::Status MpiEngine::Await(const MpiOperation& operation, absl::Duration deadline) {
  const auto is_over = [&] { return operation.done || !aborted_.ok(); };
  std::unique_lock<std::mutex> lock(mutex_);
  if (!WaitAtMost(deadline, changed_, lock, is_over)) return absl::DeadlineExceededError("");
  return operation.done ? operation.result : aborted_;
}

std::chrono::steady_clock::time_point MpiEngine::EndedAt(const MpiOperation& operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  return operation.done ? operation.ended : std::chrono::steady_clock::now();
}

void MpiEngine::Abort(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.ok()) return;
  aborted_ = absl::AbortedError(reason.message());
  tell_others_ = true;
  changed_.notify_all();
  work_.notify_all();
}

// --- the communication thread -----------------------------------------------------------------

void MpiEngine::Run() {
  std::chrono::microseconds nap = kShortestNap;
  int eager_looks = 0;
  while (true) {
    std::deque<std::shared_ptr<MpiOperation>> started;
    absl::Status aborted;
    bool tell_others = false;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      const auto has_news = [&] { return stopping_ || tell_others_ || !started_.empty(); };
      if (!HasWorkInFlight()) {
        work_.wait_for(lock, kIdleNap, has_news);
      } else if (eager_looks == 0) {
        work_.wait_for(lock, nap, has_news);
        nap = std::min(2 * nap, kLongestNap);
      }
      if (stopping_) break;
      started.swap(started_);
      aborted = aborted_;
      tell_others = std::exchange(tell_others_, false);
    }
    if (tell_others) SendAbort(std::string(aborted.message()));
    if (!aborted.ok()) GiveUp(aborted);
    for (const std::shared_ptr<MpiOperation>& operation : started) {
      if (aborted.ok()) {
        Post(operation);
      } else {
        Finish(operation, aborted);
      }
    }
    if (Poll() || !started.empty()) {
      nap = kShortestNap;
      eager_looks = kEagerLooks;
    } else if (eager_looks > 0) {
      --eager_looks;
      std::this_thread::yield();
    }
  }
  Close();
}

bool MpiEngine::HasWorkInFlight() const {
  return !mpi_->requests.empty() || !busy_channels_.empty();
}

void MpiEngine::Post(const std::shared_ptr<MpiOperation>& operation) {
  if (operation->channel != nullptr) {
    if (operation->channel->idle()) busy_channels_.push_back(operation->channel);
    operation->shared.what = operation->what;
    operation->shared.done = [this, operation](absl::Status result) {
      Finish(operation, std::move(result));
    };
    operation->channel->Start(std::move(operation->shared));
    return;
  }
  for (const MpiTransfer& transfer : operation->rounds[operation->round].transfers) {
    const bool is_send = transfer.direction == MpiTransfer::Direction::kSend;
    char* at = static_cast<char*>(transfer.data);
    int64_t left = transfer.bytes;
    do {  // at least once: zero bytes are a message too
      const int64_t bytes = std::min(left, options_.max_message_bytes);
      MPI_Request request = MPI_REQUEST_NULL;
      const int count = static_cast<int>(bytes);
      const int code =
          is_send
              ? MPI_Isend(at, count, MPI_BYTE, transfer.peer, transfer.tag, mpi_->comm, &request)
              : MPI_Irecv(at, count, MPI_BYTE, transfer.peer, transfer.tag, mpi_->comm, &request);
      if (code != MPI_SUCCESS) return Fail(operation, MpiErrorText(code));
      mpi_->requests.push_back(request);
      mpi_->owners.push_back({operation, is_send ? -1 : bytes, transfer.peer});
      ++operation->open_messages;
      at += bytes;
      left -= bytes;
    } while (left > 0);
  }
  if (operation->open_messages == 0) FinishRound(operation);
}

// Whether anything has moved.
bool MpiEngine::Poll() {
  const bool advanced = AdvanceChannels();
  return PollMessages() || advanced;
}

bool MpiEngine::AdvanceChannels() {
  bool advanced = false;
  for (const std::shared_ptr<SharedChannel>& channel : busy_channels_) {
    advanced = channel->Advance() || advanced;
  }
  const auto is_idle = [](const std::shared_ptr<SharedChannel>& channel) {
    return channel->idle();
  };
  busy_channels_.erase(std::remove_if(busy_channels_.begin(), busy_channels_.end(), is_idle),
                       busy_channels_.end());
  return advanced;
}

// Whether a message has arrived or left.
bool MpiEngine::PollMessages() {
  Mpi& mpi = *mpi_;
  int has_abort = 0;
  MPI_Status abort_status;
  if (mpi.abort_receive != MPI_REQUEST_NULL) {
    MPI_Test(&mpi.abort_receive, &has_abort, &abort_status);
  }
  if (has_abort && !mpi.gave_up) {
    int bytes = 0;
    MPI_Get_count(&abort_status, MPI_BYTE, &bytes);
    const std::string reason(mpi.abort_text.data(), static_cast<size_t>(std::max(bytes, 0)));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (aborted_.ok()) aborted_ = absl::AbortedError(reason);
      changed_.notify_all();
    }
    GiveUp(absl::AbortedError(reason));
  }
  if (mpi.requests.empty()) return false;

  const int num_requests = static_cast<int>(mpi.requests.size());
  mpi.indices.resize(mpi.requests.size());
  mpi.statuses.resize(mpi.requests.size());
  int num_over = 0;
  const int code = MPI_Testsome(num_requests, mpi.requests.data(), &num_over, mpi.indices.data(),
                                mpi.statuses.data());
  if (num_over == MPI_UNDEFINED || num_over == 0) return false;

  std::vector<std::shared_ptr<MpiOperation>> rounds_over;
  for (int i = 0; i < num_over; ++i) {
    Mpi::Owner& owner = mpi.owners[static_cast<size_t>(mpi.indices[static_cast<size_t>(i)])];
    MPI_Status& status = mpi.statuses[static_cast<size_t>(i)];
    const std::shared_ptr<MpiOperation> operation = std::move(owner.operation);
    const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
    int bytes = 0;
    if (owner.receives_bytes >= 0) MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (error == MPI_ERR_TRUNCATE || (owner.receives_bytes >= 0 && bytes != owner.receives_bytes)) {
      Fail(operation,
           absl::StrCat("expects ", owner.receives_bytes, " bytes from world rank ", owner.peer,
                        ", which sends ", error == MPI_ERR_TRUNCATE ? "more" : absl::StrCat(bytes),
                        ": ranks disagree about shapes"));
    } else if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) {
      Fail(operation, MpiErrorText(error));
    }
    if (--operation->open_messages == 0) rounds_over.push_back(operation);
  }
  // What is over leaves; requests keep their order.
  size_t kept = 0;
  for (size_t i = 0; i < mpi.requests.size(); ++i) {
    if (mpi.requests[i] == MPI_REQUEST_NULL) continue;
    mpi.requests[kept] = mpi.requests[i];
    if (kept != i) mpi.owners[kept] = std::move(mpi.owners[i]);
    ++kept;
  }
  mpi.requests.resize(kept);
  mpi.owners.resize(kept);
  for (const std::shared_ptr<MpiOperation>& operation : rounds_over) FinishRound(operation);
  return true;
}

void MpiEngine::FinishRound(const std::shared_ptr<MpiOperation>& operation) {
  if (operation->done) {  // it failed; only its messages were still under way
    operation->memory.clear();
    return;
  }
  if (operation->rounds[operation->round].then) operation->rounds[operation->round].then();
  if (++operation->round == operation->rounds.size()) {
    Finish(operation, absl::OkStatus());
  } else {
    Post(operation);
  }
}

void MpiEngine::Finish(const std::shared_ptr<MpiOperation>& operation, absl::Status result) {
  if (operation->open_messages == 0) operation->memory.clear();
  std::lock_guard<std::mutex> lock(mutex_);
  if (operation->done) return;
  operation->done = true;
  operation->ended = std::chrono::steady_clock::now();
  operation->result = std::move(result);
  changed_.notify_all();
}

void MpiEngine::Fail(const std::shared_ptr<MpiOperation>& operation, const std::string& reason) {
  Finish(operation, absl::InternalError(absl::StrCat("[", operation->what, "] ", reason)));
}

// Ends what is in flight. Receives are taken back; a send stays until MPI lets go of it, and with
// it its operation's memory.
void MpiEngine::GiveUp(const absl::Status& reason) {
  Mpi& mpi = *mpi_;
  if (std::exchange(mpi.gave_up, true)) return;
  for (const std::shared_ptr<SharedChannel>& channel : std::exchange(busy_channels_, {})) {
    channel->Fail(reason);
  }
  for (size_t i = 0; i < mpi.requests.size(); ++i) {
    Finish(mpi.owners[i].operation, reason);
    if (mpi.owners[i].receives_bytes >= 0) {
      mpi.owners[i].receives_bytes = -1;  // a cancelled one counts as zero bytes
      MPI_Cancel(&mpi.requests[i]);
    }
  }
}

void MpiEngine::SendAbort(const std::string& reason) {
  mpi_->sent_abort_text = reason.substr(0, kMaxAbortBytes);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(mpi_->sent_abort_text.data(), static_cast<int>(mpi_->sent_abort_text.size()),
              MPI_BYTE, peer, kAbortTag, mpi_->comm, &request);
    mpi_->abort_sends.push_back(request);
  }
}

void MpiEngine::ListenForAbort() {
  MPI_Irecv(mpi_->abort_text.data(), kMaxAbortBytes, MPI_BYTE, MPI_ANY_SOURCE, kAbortTag,
            mpi_->comm, &mpi_->abort_receive);
}

void MpiEngine::Close() {
  Mpi& mpi = *mpi_;
  bool tell_others = false;
  absl::Status aborted;
  std::deque<std::shared_ptr<MpiOperation>> started;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    tell_others = tell_others_;
    aborted = aborted_.ok() ? absl::AbortedError("the world has ended") : aborted_;
    started.swap(started_);
  }
  if (tell_others) SendAbort(std::string(aborted.message()));
  GiveUp(aborted);
  for (const std::shared_ptr<MpiOperation>& operation : started) Finish(operation, aborted);
  const auto until = std::chrono::steady_clock::now() + kTimeToTell;
  int told = mpi.abort_sends.empty();
  while (!told && std::chrono::steady_clock::now() < until) {
    MPI_Testall(static_cast<int>(mpi.abort_sends.size()), mpi.abort_sends.data(), &told,
                MPI_STATUSES_IGNORE);
    std::this_thread::yield();
  }
  if (mpi.abort_receive != MPI_REQUEST_NULL) {
    MPI_Cancel(&mpi.abort_receive);
    MPI_Wait(&mpi.abort_receive, MPI_STATUS_IGNORE);
  }
  Poll();
  // MPI may still read the memory of a send that no one received, so that stays for good.
  if (!mpi.requests.empty() || !told) mpi_.release();  // NOLINT: on purpose
}

}  // namespace meshfold::comm
