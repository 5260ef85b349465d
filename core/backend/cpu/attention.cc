// Softmax attention, forward: tiles of queries against blocks of keys with online softmax (Dao
// 2023, FlashAttention-2).
//
// Scores are computed with keys as rows and queries as columns, so that softmax needs no sum across
// a vector, and the exponentials lie as the second product reads them. A query's bits depend on its
// own row and the keys it sees: key blocks are counted from the document's start, and keys that it
// does not see add exact zeros. So tiles, packing, caches and threads never change a result.
#include <algorithm>
#include <limits>
#include <vector>

#include "core/backend/cpu/attention_kernel.h"
#include "core/backend/cpu/attention_plan.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/parallel_for.h"

namespace meshfold {
namespace cpu {

std::vector<AttentionDocument> DocumentsOf(const AttentionArgs& args) {
  std::vector<AttentionDocument> documents;
  MF_CHECK_EQ(args.cu_seqlens_q.size(), args.cu_seqlens_k.size());
  for (size_t n = 0; n + 1 < args.cu_seqlens_q.size(); ++n) {
    AttentionDocument document;
    document.first_query = args.cu_seqlens_q[n];
    document.queries = args.cu_seqlens_q[n + 1] - document.first_query;
    document.first_key = args.cu_seqlens_k[n];
    document.keys = args.cu_seqlens_k[n + 1] - document.first_key;
    MF_CHECK_LE(document.queries, document.keys) << "document " << n;
    if (document.queries > 0) documents.push_back(document);
  }
  return documents;
}

namespace {

constexpr int64_t kQueryTile = 48;
// Also the unit of the running sums, so part of a result's bits.
constexpr int64_t kKeyBlock = 256;
static_assert(kKeyBlock <= kMaxPartialDepth && kQueryTile <= kMaxPanel);

// Query tiles [first_tile, end_tile) of the query heads that share a key-value head.
struct ForwardItem {
  AttentionDocument document;
  int64_t kv_head = 0, first_tile = 0, end_tile = 0;
};

class AttentionForward {
 public:
  AttentionForward(const AttentionArgs& args, const Tensor& out, const Tensor& lse,
                   const ForwardItem& item, Allocator& allocator)
      : args_(args),
        out_(out),
        lse_(lse),
        document_(item.document),
        item_(item),
        first_block_(FirstVisible(item.first_tile * kQueryTile) / kKeyBlock),
        end_key_(std::min(document_.keys, document_.offset() + item.end_tile * kQueryTile)),
        scratch_(Plan(), allocator) {}

  void Run() {
    PrepareKeysAndValues();
    const int64_t group = args_.num_heads / args_.num_kv_heads;
    for (int64_t head = item_.kv_head * group; head < (item_.kv_head + 1) * group; ++head) {
      for (int64_t tile = item_.first_tile; tile < item_.end_tile; ++tile) RunTile(head, tile);
    }
  }

 private:
  // The oldest key that query `query` sees.
  int64_t FirstVisible(int64_t query) const {
    if (args_.window <= 0) return 0;
    return std::max<int64_t>(0, document_.offset() + query - args_.window + 1);
  }
  int64_t padded_value_dim() const { return PaddedColumns(args_.value_dim); }

  int64_t Plan() {
    ScratchLayout layout;
    const int64_t keys = PackedLeftFloats(end_key_ - first_block_ * kKeyBlock, 1);
    keys_at_ = layout.Add(keys * args_.head_dim);
    values_at_ = layout.Add(keys * padded_value_dim());
    query_at_ = layout.Add(PackedRightFloats(args_.head_dim, kQueryTile));
    scores_at_ = layout.Add(kKeyBlock * PaddedColumns(kQueryTile));
    weights_at_ = layout.Add(kKeyBlock * PaddedColumns(kQueryTile));
    sums_at_ = layout.Add(kQueryTile * padded_value_dim());
    statistics_at_ = layout.Add(3 * PaddedColumns(kQueryTile));
    return layout.size();
  }
  float* At(int64_t offset) const { return scratch_.data() + offset; }

  // Keys as left operands, values as right operands, a block at a time.
  void PrepareKeysAndValues() {
    for (int64_t begin = first_block_ * kKeyBlock; begin < end_key_; begin += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, end_key_ - begin);
      const int64_t row = document_.first_key + begin, at = begin - first_block_ * kKeyBlock;
      keys_.push_back(PrepareLeftRows(HeadRows(args_.k, row, item_.kv_head, args_.head_dim), count,
                                      args_.head_dim, At(keys_at_) + at * args_.head_dim));
      values_.push_back(PackRight(HeadRows(args_.v, row, item_.kv_head, args_.value_dim), count,
                                  args_.value_dim, At(values_at_) + at * padded_value_dim()));
    }
  }

  void RunTile(int64_t head, int64_t tile) {
    const int64_t query = tile * kQueryTile;
    const int64_t count = std::min(kQueryTile, document_.queries - query);
    const MatrixOperand queries =
        PackRight(HeadRows(args_.q, document_.first_query + query, head, args_.head_dim, true),
                  args_.head_dim, count, At(query_at_));
    float* max = At(statistics_at_);
    std::fill_n(max, PaddedColumns(kQueryTile), -std::numeric_limits<float>::infinity());
    std::fill_n(sum(), PaddedColumns(kQueryTile), 0.0f);
    const int64_t first = FirstVisible(query) / kPackedRowUnit * kPackedRowUnit;
    const int64_t end = document_.offset() + query + count;
    bool is_first = true;
    for (int64_t key = first; key < end; key = (key / kKeyBlock + 1) * kKeyBlock) {
      const int64_t keys = std::min((key / kKeyBlock + 1) * kKeyBlock, end) - key;
      AddBlock(queries, query, count, key, keys, is_first);
      is_first = false;
    }
    StoreTile(head, query, count);
  }

  // Adds keys [key, key + keys), of one block, to the running sums of `count` queries.
  void AddBlock(const MatrixOperand& queries, int64_t query, int64_t count, int64_t key,
                int64_t keys, bool is_first) {
    const size_t block = static_cast<size_t>(key / kKeyBlock - first_block_);
    const MatrixOperand key_rows = FromRow(keys_[block], key % kKeyBlock);
    MatrixOperand value_rows = values_[block];
    value_rows.first_row = key % kKeyBlock;
    const int64_t columns = PaddedColumns(count), dim = padded_value_dim();
    float* scores = At(scores_at_);
    Multiply({key_rows, queries, scores, columns, keys, columns, args_.head_dim}, nullptr);
    SoftmaxOfColumns({scores, columns, At(weights_at_), keys, columns,
                      key - (document_.offset() + query), args_.window,
                      static_cast<float>(args_.scale), At(statistics_at_), sum(), rescale()});
    if (!is_first) ScaleRows(rescale(), At(sums_at_), dim, count, dim);
    const MatrixOperand weights{At(weights_at_), 0, false, DType::kF32, true, columns, keys};
    Multiply({weights, value_rows, At(sums_at_), dim, count, dim, keys, !is_first}, nullptr);
  }

  void StoreTile(int64_t head, int64_t query, int64_t count) {
    const int64_t row = document_.first_query + query;
    NormalizedRows rows;
    rows.sums = At(sums_at_);
    rows.sums_pitch = padded_value_dim();
    rows.max = At(statistics_at_);
    rows.sum = sum();
    rows.count = count;
    rows.dim = args_.value_dim;
    rows.out = out_.row<float>(row) + head * args_.value_dim;
    rows.out_pitch = out_.pitch();
    rows.lse = lse_.row<float>(row) + head;
    rows.lse_pitch = lse_.pitch();
    NormalizeRows(rows);
  }
  float* sum() const { return At(statistics_at_) + PaddedColumns(kQueryTile); }
  float* rescale() const { return At(statistics_at_) + 2 * PaddedColumns(kQueryTile); }

  const AttentionArgs& args_;
  const Tensor& out_;
  const Tensor& lse_;
  const AttentionDocument& document_;
  const ForwardItem& item_;
  const int64_t first_block_, end_key_;  // keys that the item reads: from a block's start on
  int64_t keys_at_ = 0, values_at_ = 0, query_at_ = 0, scores_at_ = 0, weights_at_ = 0,
          sums_at_ = 0,
          statistics_at_ = 0;  // in scratch_; set by Plan
  const Scratch scratch_;
  std::vector<MatrixOperand> keys_, values_;  // by block
};

// Work for `num_threads` threads: whole documents and key-value heads, cut into runs of query tiles
// while there are too few. Long documents come first.
std::vector<ForwardItem> ForwardItems(const AttentionArgs& args, int num_threads) {
  std::vector<AttentionDocument> documents = DocumentsOf(args);
  std::stable_sort(documents.begin(), documents.end(),
                   [](const auto& a, const auto& b) { return a.queries > b.queries; });
  const int64_t whole = static_cast<int64_t>(documents.size()) * args.num_kv_heads;
  const int64_t wanted = num_threads == 1 ? 1 : 4 * num_threads;
  const int64_t cuts = whole == 0 ? 1 : (wanted + whole - 1) / whole;
  std::vector<ForwardItem> items;
  for (const AttentionDocument& document : documents) {
    const int64_t tiles = (document.queries + kQueryTile - 1) / kQueryTile;
    for (int64_t kv_head = 0; kv_head < args.num_kv_heads; ++kv_head) {
      for (int64_t cut = cuts - 1; cut >= 0; --cut) {  // late tiles see most keys
        const ForwardItem item{document, kv_head, tiles * cut / cuts, tiles * (cut + 1) / cuts};
        if (item.first_tile < item.end_tile) items.push_back(item);
      }
    }
  }
  return items;
}

}  // namespace
}  // namespace cpu

void CpuBackend::Attention(const AttentionArgs& args, const Tensor& out, const Tensor& lse) {
  const ExecContext& context = CurrentContext();
  MF_CHECK_EQ(args.num_heads % args.num_kv_heads, 0);
  const std::vector<cpu::ForwardItem> items = cpu::ForwardItems(args, context.num_threads);
  ParallelForDynamic(static_cast<int64_t>(items.size()), context.num_threads, [&](int64_t i) {
    cpu::AttentionForward(args, out, lse, items[static_cast<size_t>(i)], *context.allocator).Run();
  });
}

}  // namespace meshfold
