#include "core/data/packing.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

// The span that stands at place `place` of a pass over `count` spans.
int64_t SpanAt(const std::optional<RngKey>& shuffle, int64_t place, int64_t count) {
  return shuffle ? static_cast<int64_t>(PermuteIndex(*shuffle, place, count)) : place;
}

class StreamIndex : public SampleIndex {
 public:
  StreamIndex(const std::vector<DocumentSpan>& spans, int64_t seq_length, const PassOptions& pass)
      : seq_length_(seq_length), shuffle_(pass.shuffle) {
    ends_.reserve(spans.size());
    int64_t total = 0;
    for (size_t place = 0; place < spans.size(); ++place) {
      total += spans[SpanAt(shuffle_, place, spans.size())].length;
      ends_.push_back(total);
    }
    int64_t predicted = std::max<int64_t>(total - 1, 0);
    num_samples_ = predicted / seq_length;
    num_dropped_ = total - (num_samples_ > 0 ? num_samples_ * seq_length + 1 : 0);
    if (pass.keep_tail && predicted % seq_length > 0) {
      ++num_samples_;
      num_dropped_ = 0;
    }
  }

  int64_t num_samples() const override { return num_samples_; }
  int64_t num_dropped_tokens() const override { return num_dropped_; }

  std::vector<Segment> Segments(int64_t i) const override {
    MF_CHECK(i >= 0 && i < num_samples_) << " sample " << i << " of " << num_samples_;
    int64_t at = i * seq_length_, stop = std::min(at + seq_length_ + 1, ends_.back());
    size_t place = std::upper_bound(ends_.begin(), ends_.end(), at) - ends_.begin();
    std::vector<Segment> segments;
    for (; at < stop; ++place) {
      int64_t begin = place == 0 ? 0 : ends_[place - 1];
      int64_t count = std::min(stop, ends_[place]) - at;
      segments.push_back({SpanAt(shuffle_, place, ends_.size()), at - begin, count});
      at += count;
    }
    return segments;
  }

 private:
  int64_t seq_length_;
  std::optional<RngKey> shuffle_;
  std::vector<int64_t> ends_;  // of each place in the stream, in tokens
  int64_t num_samples_ = 0, num_dropped_ = 0;
};

class DocumentIndex : public SampleIndex {
 public:
  DocumentIndex(const std::vector<DocumentSpan>& spans, int64_t seq_length,
                const PassOptions& pass) {
    std::vector<Segment> pieces = CutPieces(spans, seq_length, pass);
    std::stable_sort(pieces.begin(), pieces.end(),
                     [](const Segment& a, const Segment& b) { return a.count > b.count; });
    Pack(std::move(pieces), seq_length);
  }

  int64_t num_samples() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t num_dropped_tokens() const override { return num_dropped_; }

  std::vector<Segment> Segments(int64_t i) const override {
    MF_CHECK(i >= 0 && i < num_samples()) << " sample " << i << " of " << num_samples();
    return {pieces_.begin() + begins_[i], pieces_.begin() + begins_[i + 1]};
  }

 private:
  std::vector<Segment> CutPieces(const std::vector<DocumentSpan>& spans, int64_t seq_length,
                                 const PassOptions& pass) {
    std::vector<Segment> pieces;
    for (size_t place = 0; place < spans.size(); ++place) {
      int64_t span = SpanAt(pass.shuffle, place, spans.size());
      int64_t length = spans[span].length;
      for (int64_t begin = 0; begin < length; begin += seq_length) {
        int64_t count = std::min(seq_length, length - begin);
        if (count == 1 && begin + count == length) {
          ++num_dropped_;
        } else {
          pieces.push_back({span, begin, count});
        }
      }
    }
    return pieces;
  }

  // Best fit: each piece goes where it leaves the least room, among equals where one went last.
  void Pack(std::vector<Segment> pieces, int64_t seq_length) {
    std::map<int64_t, std::vector<int64_t>> open;  // samples by room left
    std::vector<int64_t> sample_of(pieces.size());
    std::vector<int64_t> counts;  // pieces of each sample
    for (size_t p = 0; p < pieces.size(); ++p) {
      int64_t room = seq_length, sample = static_cast<int64_t>(counts.size());
      auto it = open.lower_bound(pieces[p].count);
      if (it == open.end()) {
        counts.push_back(0);
      } else {
        room = it->first;
        sample = it->second.back();
        it->second.pop_back();
        if (it->second.empty()) open.erase(it);
      }
      sample_of[p] = sample;
      ++counts[sample];
      room -= pieces[p].count;
      if (room > 0) open[room].push_back(sample);
    }
    begins_.assign(1, 0);
    for (int64_t count : counts) begins_.push_back(begins_.back() + count);
    std::vector<int64_t> next(begins_.begin(), begins_.end() - 1);
    pieces_.resize(pieces.size());
    for (size_t p = 0; p < pieces.size(); ++p) pieces_[next[sample_of[p]]++] = pieces[p];
  }

  std::vector<Segment> pieces_;  // by sample
  std::vector<int64_t> begins_;  // of each sample in pieces_
  int64_t num_dropped_ = 0;
};

// Reads tokens [begin, begin + count) of a span and checks them.
absl::Status ReadSpan(const Dataset& dataset, const DocumentSpan& span, int64_t begin,
                      int64_t count, int64_t vocab_size, std::vector<int32_t>& tokens) {
  size_t old_size = tokens.size();
  tokens.resize(old_size + count);
  int32_t* out = tokens.data() + old_size;
  MF_RETURN_IF_ERROR(dataset.Read(span.document, span.begin + begin, count, out));
  if (vocab_size == 0) return absl::OkStatus();
  for (int64_t t = 0; t < count; ++t) {
    if (out[t] < vocab_size) continue;
    return absl::OutOfRangeError(absl::StrCat(
        "[Packing] '", dataset.name(), "': id ", out[t], " out of range [0, ", vocab_size,
        ") at token ", span.begin + begin + t, " of document ", span.document));
  }
  return absl::OkStatus();
}

// Appends a packed document: `known` are its tokens, of which the first `count` are inputs, and one
// more is there if the document goes on.
void AppendDocument(absl::Span<const int32_t> known, int64_t count, PackedSample& sample) {
  for (int64_t t = 0; t < count; ++t) {
    bool has_target = t + 1 < static_cast<int64_t>(known.size());
    sample.tokens.push_back(known[t]);
    sample.targets.push_back(has_target ? known[t + 1] : kIgnoredTarget);
    sample.positions.push_back(static_cast<int32_t>(t));
    sample.num_valid += has_target;
  }
  sample.cu_seqlens.push_back(static_cast<int32_t>(sample.tokens.size()));
}

void AppendPadding(int64_t count, int32_t pad_token, PackedSample& sample) {
  if (count == 0) return;
  for (int64_t t = 0; t < count; ++t) {
    sample.tokens.push_back(pad_token);
    sample.targets.push_back(kIgnoredTarget);
    sample.positions.push_back(static_cast<int32_t>(t));
  }
  sample.num_padding = count;
  sample.cu_seqlens.push_back(static_cast<int32_t>(sample.tokens.size()));
}

}  // namespace

std::unique_ptr<SampleIndex> BuildSampleIndex(const std::vector<DocumentSpan>& spans,
                                              const PackingOptions& packing,
                                              const PassOptions& pass) {
  MF_CHECK_GT(packing.seq_length, 0);
  if (packing.mode == PackingMode::kDocument) {
    return std::make_unique<DocumentIndex>(spans, packing.seq_length, pass);
  }
  return std::make_unique<StreamIndex>(spans, packing.seq_length, pass);
}

absl::StatusOr<PackedSample> PackSample(const Dataset& dataset,
                                        const std::vector<DocumentSpan>& spans,
                                        absl::Span<const Segment> segments,
                                        const PackingOptions& packing, int64_t vocab_size) {
  int64_t seq_length = packing.seq_length;
  PackedSample sample;
  sample.cu_seqlens.push_back(0);
  std::vector<int32_t> known;
  for (const Segment& segment : segments) {
    const DocumentSpan& span = spans[segment.span];
    if (packing.document_mask) {
      int64_t room = seq_length - static_cast<int64_t>(sample.tokens.size());
      int64_t count = std::min(segment.count, room);
      if (count == 0) break;  // the token after a stream's sequence, of another document
      int64_t goes_on = segment.begin + count < span.length;
      known.clear();
      MF_RETURN_IF_ERROR(
          ReadSpan(dataset, span, segment.begin, count + goes_on, vocab_size, known));
      AppendDocument(known, count, sample);
    } else {
      MF_RETURN_IF_ERROR(ReadSpan(dataset, span, segment.begin, segment.count, vocab_size, known));
    }
  }
  if (!packing.document_mask && !known.empty()) {
    AppendDocument(known, std::min<int64_t>(seq_length, known.size()), sample);
  }
  AppendPadding(seq_length - static_cast<int64_t>(sample.tokens.size()), packing.pad_token, sample);
  return sample;
}

}  // namespace meshfold
