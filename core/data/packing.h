// From documents to sequences of equal length: which tokens make sample i, and the arrays a model
// reads. Pure functions; no state, no randomness but a key.
//
// S is the sequence length. Positions count from 0 in each packed document and cu_seqlens holds the
// borders, so a model sees documents of one sequence as separate exactly when this file says so.
// Whether a position counts in the loss follows from where documents end, never from a token's id.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/rng.h"
#include "core/data/dataset.h"
#include "core/data/split.h"

namespace meshfold {

// The target of a position that does not count in the loss.
inline constexpr int32_t kIgnoredTarget = -100;

enum class PackingMode {
  kStream,    // documents one after another, cut every S tokens
  kDocument,  // whole documents side by side, the rest of a sequence padded
};

struct PackingOptions {
  int64_t seq_length = 0;  // S
  PackingMode mode = PackingMode::kStream;
  // Packed documents do not see each other and do not predict each other's first token. Without it
  // (kStream only) a sequence is one document, as GPT pre-training had it.
  bool document_mask = true;
  int32_t pad_token = 0;  // any id of the vocabulary: padding is known by position
};

// Tokens [begin, begin + count) of spans[span].
struct Segment {
  int64_t span = 0;
  int64_t begin = 0;
  int64_t count = 0;
  friend bool operator==(const Segment& a, const Segment& b) {
    return a.span == b.span && a.begin == b.begin && a.count == b.count;
  }
};

// The samples of one pass over some spans. Immutable: thread-safe.
class SampleIndex {
 public:
  virtual ~SampleIndex() = default;
  virtual int64_t num_samples() const = 0;
  // Tokens of the pass that no sample has.
  virtual int64_t num_dropped_tokens() const = 0;
  // What sample `i` in [0, num_samples()) is made of, in order.
  virtual std::vector<Segment> Segments(int64_t i) const = 0;
};

struct PassOptions {
  std::optional<RngKey> shuffle;  // order of the spans; absent = as they stand
  bool keep_tail = false;         // kStream: a last, shorter sample instead of dropped tokens
};

// The index of a pass. The number of samples does not depend on the shuffle.
//
// kStream: sample i is tokens [i*S, i*S + S] of the spans in shuffled order: S inputs, and one more
// because the targets are shifted by one, so neighbours share a token. The last (tokens - 1) mod S
// tokens are dropped unless kept. O(spans) time and 8 bytes a span.
//
// kDocument: spans longer than S are cut every S tokens; the pieces are packed by best fit in order
// of falling length (ties in shuffled order). Pieces of one token that have no target are dropped.
// A sample's segments hold at most S tokens. O(pieces log S) time, 24 bytes a piece.
std::unique_ptr<SampleIndex> BuildSampleIndex(const std::vector<DocumentSpan>& spans,
                                              const PackingOptions& packing,
                                              const PassOptions& pass);

// A sequence of S tokens ready for a model.
struct PackedSample {
  std::vector<int32_t> tokens;      // [S]
  std::vector<int32_t> targets;     // [S], the next token of the same document or kIgnoredTarget
  std::vector<int32_t> positions;   // [S], from 0 in each document
  std::vector<int32_t> cu_seqlens;  // [documents + 1], from 0 to S; padding is the last document
  int64_t num_padding = 0;          // positions at the end that no document has
  int64_t num_valid = 0;            // targets that count
};

// Reads the segments' tokens and lays them out; what is left of S is padding. Targets are shifted
// inside a document before packing, so the last token of a sequence has a target whenever its
// document goes on. OutOfRange, naming dataset, document and position, for an id that is not below
// `vocab_size` (0: not checked).
absl::StatusOr<PackedSample> PackSample(const Dataset& dataset,
                                        const std::vector<DocumentSpan>& spans,
                                        absl::Span<const Segment> segments,
                                        const PackingOptions& packing, int64_t vocab_size);

}  // namespace meshfold
