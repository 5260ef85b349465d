// How a collective is cut into chunks that fit the slots of a shared window, into parts that ranks
// add, and what that sends: arithmetic only.
//
// Every chunk goes through three stages: each rank copies what others need of it into its slot;
// when all have, each combines (adds its part, or copies others' out); for long all-reduces, when
// all have, each gathers the parts that others have added.
#pragma once

#include <cstdint>

namespace meshfold::comm {

enum class SharedKind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kBarrier };

// A half-open interval of bytes.
struct ByteRange {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

class SharedPlan {
 public:
  // `bytes`: of the whole tensor for all-reduce and broadcast, of one rank's part for
  // reduce-scatter and all-gather, 0 for a barrier. `slot_bytes` is a multiple of 64 that holds 64
  // bytes a rank.
  SharedPlan(SharedKind kind, int64_t bytes, int num_ranks, int64_t slot_bytes);
  // Of one chunk: as it goes by messages.
  static SharedPlan Uncut(SharedKind kind, int64_t bytes, int num_ranks);

  SharedKind kind() const { return kind_; }
  int64_t bytes() const { return bytes_; }
  // At least 1: an operation of no bytes waits for the others too.
  int64_t num_chunks() const;
  // Chunk `chunk` of `bytes`.
  ByteRange Chunk(int64_t chunk) const;
  // The part of chunk `chunk` of an all-reduce that rank `rank` adds, as bytes of the tensor. A
  // short sum is added whole by every rank: one stage of waiting less.
  ByteRange Part(int64_t chunk, int rank) const;
  bool adds_whole() const { return adds_whole_; }
  // Whether the third stage moves anything.
  bool gathers() const { return kind_ == SharedKind::kAllReduce && !adds_whole_; }
  // Of a reduce-scatter: where in each slot the bytes for rank `rank` lie.
  int64_t PlaceFor(int rank) const { return rank * chunk_bytes_; }

  // Bytes that rank `rank` sends, as if each reader got a message of its own: the closed forms of
  // comm/stats.h.
  int64_t SentBytes(int rank, int root) const;

 private:
  const SharedKind kind_;
  const int64_t bytes_;
  const int num_ranks_;
  const bool adds_whole_;
  const int64_t chunk_bytes_;
};

}  // namespace meshfold::comm
