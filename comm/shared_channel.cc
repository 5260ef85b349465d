#include "comm/shared_channel.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/host_bytes.h"
#include "comm/rank_order_sum.h"
#include "core/base/check.h"

namespace meshfold::comm {

SharedChannel::SharedChannel(std::shared_ptr<SharedWindow> window, int rank)
    : window_(std::move(window)),
      rank_(rank),
      num_ranks_(window_->shape().num_ranks),
      num_slots_(window_->shape().num_slots) {}

void SharedChannel::Start(SharedOperation operation) {
  const SharedPlan plan = PlanOf(operation);
  active_.push_back({std::move(operation), plan, plan.num_chunks(), absl::OkStatus()});
}

// The oldest chunks first: what they hold is still in the caches.
bool SharedChannel::Advance() {
  bool moved = !active_.empty() && Gather();
  moved = Combine() || moved;
  return CopyIn() || moved;
}

void SharedChannel::Fail(const absl::Status& reason) {
  std::deque<Active> ended = std::exchange(active_, {});
  for (Active& active : ended) active.operation.done(reason);
}

// --- the stages -------------------------------------------------------------------------------

// A slot is free once every rank has let go of the chunk that was in it.
bool SharedChannel::CopyIn() {
  if (copy_in_.index == active_.size()) return false;
  if (!AllReached(&SharedProgress::released, copy_in_.sequence - num_slots_ + 1)) return false;
  const Active& active = active_[copy_in_.index];
  if (copy_in_.chunk == 0) {
    SharedHeader& header = window_->header(rank_, copy_in_.sequence);
    header.kind = static_cast<int32_t>(active.operation.kind);
    header.dtype = static_cast<int32_t>(active.operation.dtype);
    header.root = active.operation.root;
    header.bytes = active.operation.bytes;
  }
  CopyChunkIn(active, copy_in_);
  Step(copy_in_);
  Publish(&SharedProgress::copied_in, copy_in_.sequence);
  return true;
}

bool SharedChannel::Combine() {
  if (combine_.index == active_.size()) return false;
  if (!AllReached(&SharedProgress::copied_in, combine_.sequence + 1)) return false;
  Active& active = active_[combine_.index];
  if (combine_.chunk == 0) {
    absl::Status agreed = CheckAgreement(active, combine_.sequence);
    if (!agreed.ok()) {
      GiveUp(active, std::move(agreed));
      return true;
    }
  }
  CombineChunk(active, combine_);
  Step(combine_);
  Publish(&SharedProgress::combined, combine_.sequence);
  return true;
}

bool SharedChannel::Gather() {
  if (gather_.sequence == combine_.sequence) return false;
  const Active& active = active_.front();
  if (active.failure.ok() && active.plan.gathers()) {
    if (!AllReached(&SharedProgress::combined, gather_.sequence + 1)) return false;
    GatherChunk(active, gather_);
  }
  Step(gather_);
  Publish(&SharedProgress::released, gather_.sequence);
  if (gather_.index == 1) FinishFront();
  return true;
}

void SharedChannel::CopyChunkIn(const Active& active, const Cursor& at) const {
  const SharedOperation& operation = active.operation;
  const ByteRange chunk = active.plan.Chunk(at.chunk);
  char* slot = window_->slot(rank_, at.sequence);
  switch (operation.kind) {
    case SharedKind::kAllReduce: {
      // The own part is added from where it is; its place in the slot is for the result.
      ByteRange own = active.plan.Part(at.chunk, rank_);
      if (active.plan.adds_whole()) own = {chunk.begin, chunk.begin};
      CopyBytes(operation.in + chunk.begin, slot, own.begin - chunk.begin);
      CopyBytes(operation.in + own.end, slot + own.end - chunk.begin, chunk.end - own.end);
      break;
    }
    case SharedKind::kReduceScatter:
      for (int peer = 0; peer < num_ranks_; ++peer) {
        if (peer == rank_) continue;
        CopyBytes(operation.in + peer * operation.bytes + chunk.begin,
                  slot + active.plan.PlaceFor(peer), chunk.size());
      }
      break;
    case SharedKind::kAllGather:
      CopyBytes(operation.in + chunk.begin, slot, chunk.size());
      break;
    case SharedKind::kBroadcast:
      if (rank_ == operation.root) CopyBytes(operation.in + chunk.begin, slot, chunk.size());
      break;
    case SharedKind::kBarrier:
      break;
  }
}

void SharedChannel::CombineChunk(const Active& active, const Cursor& at) const {
  const SharedOperation& operation = active.operation;
  const ByteRange chunk = active.plan.Chunk(at.chunk);
  switch (operation.kind) {
    case SharedKind::kAllReduce:
    case SharedKind::kReduceScatter:
      AddChunk(active, at);
      break;
    case SharedKind::kAllGather:
      for (int peer = 0; peer < num_ranks_; ++peer) {
        const char* from =
            peer == rank_ ? operation.in + chunk.begin : window_->slot(peer, at.sequence);
        CopyBytes(from, operation.out + peer * operation.bytes + chunk.begin, chunk.size());
      }
      break;
    case SharedKind::kBroadcast:
      if (rank_ != operation.root) {
        CopyBytes(window_->slot(operation.root, at.sequence), operation.out + chunk.begin,
                  chunk.size());
      }
      break;
    case SharedKind::kBarrier:
      break;
  }
}

void SharedChannel::AddChunk(const Active& active, const Cursor& at) const {
  const SharedOperation& operation = active.operation;
  const bool scatters = operation.kind == SharedKind::kReduceScatter;
  const ByteRange chunk = active.plan.Chunk(at.chunk);
  const ByteRange part = scatters ? chunk : active.plan.Part(at.chunk, rank_);
  const int64_t in_slot = scatters ? active.plan.PlaceFor(rank_) : part.begin - chunk.begin;
  const char* own = operation.in + (scatters ? rank_ * operation.bytes : 0) + part.begin;
  std::vector<const void*> parts;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    parts.push_back(peer == rank_ ? own : window_->slot(peer, at.sequence) + in_slot);
  }
  std::vector<void*> outs = {operation.out + part.begin};
  if (active.plan.gathers()) outs.push_back(window_->slot(rank_, at.sequence) + in_slot);
  SumInRankOrder(operation.dtype, parts, 0, part.size() / SizeOf(operation.dtype), outs);
}

void SharedChannel::GatherChunk(const Active& active, const Cursor& at) const {
  const int64_t begin = active.plan.Chunk(at.chunk).begin;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const ByteRange part = active.plan.Part(at.chunk, peer);
    CopyBytes(window_->slot(peer, at.sequence) + part.begin - begin,
              active.operation.out + part.begin, part.size());
  }
}

// --- disagreement -----------------------------------------------------------------------------

// Every rank compares the same headers, so either all of them see a difference or none does.
absl::Status SharedChannel::CheckAgreement(const Active& active, int64_t sequence) const {
  const SharedHeader& own = window_->header(rank_, sequence);
  int differs = -1;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    const SharedHeader& other = window_->header(peer, sequence);
    if (other.kind == own.kind && other.dtype == own.dtype && other.root == own.root &&
        other.bytes == own.bytes) {
      continue;
    }
    differs = peer;
    break;
  }
  if (differs < 0) return absl::OkStatus();
  const SharedHeader& other = window_->header(differs, sequence);
  const auto text = [](const SharedHeader& header) {
    return absl::StrCat(header.bytes, " bytes of ", DTypeName(static_cast<DType>(header.dtype)),
                        header.root > 0 ? absl::StrCat(" from root ", header.root) : "");
  };
  return absl::InternalError(absl::StrCat(
      "[", active.operation.what, "] has ", text(own), ", rank ", differs, " has ", text(other),
      other.kind != own.kind ? " in another operation: ranks call different operations"
                             : ": ranks disagree about shapes"));
}

// `active` begins at the chunk where all ranks have found the difference. Some may have copied in
// chunks after it, of this operation or of later ones, up to where slots are free; nobody has
// looked at those. So all skip that many, and later operations begin behind them, once more.
void SharedChannel::GiveUp(Active& active, absl::Status failure) {
  active.failure = std::move(failure);
  active.num_chunks = num_slots_;
  combine_ = {combine_.index + 1, 0, combine_.sequence + num_slots_};
  copy_in_ = combine_;
  Publish(&SharedProgress::copied_in, copy_in_.sequence);
  Publish(&SharedProgress::combined, combine_.sequence);
}

// --- progress ---------------------------------------------------------------------------------

bool SharedChannel::AllReached(Counter counter, int64_t count) const {
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if ((window_->progress(peer).*counter).load(std::memory_order_acquire) < count) return false;
  }
  return true;
}

void SharedChannel::Publish(Counter counter, int64_t count) const {
  (window_->progress(rank_).*counter).store(count, std::memory_order_release);
}

void SharedChannel::Step(Cursor& cursor) const {
  ++cursor.sequence;
  if (++cursor.chunk == active_[cursor.index].num_chunks) {
    cursor.chunk = 0;
    ++cursor.index;
  }
}

void SharedChannel::FinishFront() {
  Active over = std::move(active_.front());
  active_.pop_front();
  --gather_.index;
  --combine_.index;
  --copy_in_.index;
  over.operation.done(std::move(over.failure));
}

}  // namespace meshfold::comm
