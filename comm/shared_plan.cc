#include "comm/shared_plan.h"

#include <algorithm>

#include "core/base/check.h"

namespace meshfold::comm {
namespace {

// Sums up to this size are added whole by every rank.
constexpr int64_t kSmallSumBytes = 32 * 1024;
// Borders of the parts that ranks add: whole cache lines, and whole elements.
constexpr int64_t kLine = 64;

}  // namespace

SharedPlan::SharedPlan(SharedKind kind, int64_t bytes, int num_ranks, int64_t slot_bytes)
    : kind_(kind),
      bytes_(bytes),
      num_ranks_(num_ranks),
      adds_whole_(kind == SharedKind::kAllReduce && bytes <= std::min(kSmallSumBytes, slot_bytes)),
      chunk_bytes_(kind == SharedKind::kReduceScatter ? slot_bytes / num_ranks / kLine * kLine
                                                      : slot_bytes) {
  MF_CHECK(bytes >= 0 && chunk_bytes_ >= kLine && slot_bytes >= num_ranks * kLine)
      << " " << slot_bytes << " bytes a slot for " << num_ranks << " ranks";
}

SharedPlan SharedPlan::Uncut(SharedKind kind, int64_t bytes, int num_ranks) {
  const int64_t whole = (bytes + kLine - 1) / kLine * kLine;
  const int64_t slots = kind == SharedKind::kReduceScatter ? num_ranks : 1;
  return SharedPlan(kind, bytes, num_ranks, std::max(whole * slots, num_ranks * kLine));
}

int64_t SharedPlan::num_chunks() const {
  return std::max<int64_t>(1, (bytes_ + chunk_bytes_ - 1) / chunk_bytes_);
}

ByteRange SharedPlan::Chunk(int64_t chunk) const {
  return {std::min(bytes_, chunk * chunk_bytes_), std::min(bytes_, (chunk + 1) * chunk_bytes_)};
}

ByteRange SharedPlan::Part(int64_t chunk, int rank) const {
  const ByteRange whole = Chunk(chunk);
  if (adds_whole_) return whole;
  const int64_t even = (whole.size() + num_ranks_ - 1) / num_ranks_;
  const int64_t part = (even + kLine - 1) / kLine * kLine;
  const auto border = [&](int r) { return std::min(whole.end, whole.begin + r * part); };
  return {border(rank), border(rank + 1)};
}

int64_t SharedPlan::SentBytes(int rank, int root) const {
  const int64_t peers = num_ranks_ - 1;
  if (kind_ == SharedKind::kBroadcast) return rank == root ? bytes_ * peers : 0;
  if (!gathers()) return bytes_ * peers;
  // What the others add, and what this rank has added to each of them. All chunks but the last are
  // cut alike.
  const auto sent = [&](int64_t chunk) {
    const int64_t own = Part(chunk, rank).size();
    return Chunk(chunk).size() - own + peers * own;
  };
  return (num_chunks() - 1) * sent(0) + sent(num_chunks() - 1);
}

}  // namespace meshfold::comm
