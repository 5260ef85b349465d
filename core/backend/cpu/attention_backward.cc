// Softmax attention, backward (Dao 2023, FlashAttention-2; queries and keys of equal number):
//   P = e^(s Q K^T - lse),  dV = P^T dO,  dP = dO V^T,  delta = rowsum(dO . O),
//   dS = s P (dP - delta),  dQ = dS K,  dK = dS^T Q.
//
// One item is one query head of one document: it owns dQ, and its share of dK and dV, which it adds
// up over query tiles in ascending order. The first head of a group writes its share to dK and dV
// themselves, the others beside, and the shares are added in head order: the same bits for any
// number of threads.
#include <algorithm>
#include <vector>

#include "core/backend/cpu/attention_kernel.h"
#include "core/backend/cpu/attention_plan.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/reductions.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/parallel_for.h"

namespace meshfold {
namespace cpu {
namespace {

constexpr int64_t kQueryTile = 128;
constexpr int64_t kKeyBlock = 256;
// Rows or keys of a tile that share one limit where the causal border crosses it.
constexpr int64_t kStep = 32;
static_assert(kKeyBlock + kMaxPanel <= kDirectPitch && kStep % kPackedRowUnit == 0);

struct BackwardTensors {
  const AttentionArgs& args;
  const Tensor& out;
  const Tensor& lse;
  const Tensor& dout;
  const Tensor& dq;
  // Shares of dK and dV by position in the group; [0] are the results.
  std::vector<Tensor> dk, dv;

  int64_t group() const { return args.num_heads / args.num_kv_heads; }
};

class AttentionBackwardItem {
 public:
  AttentionBackwardItem(const BackwardTensors& tensors, const AttentionDocument& document,
                        int64_t head, Allocator& allocator)
      : t_(tensors),
        args_(tensors.args),
        document_(document),
        head_(head),
        kv_head_(head / tensors.group()),
        scratch_(Plan(), allocator) {}

  void Run() {
    PackKeysAndValues();
    for (int64_t query = 0; query < document_.queries; query += kQueryTile) RunTile(query);
  }

 private:
  // A product of this item's small matrices.
  struct Shape {
    int64_t m, n, k;
  };

  int64_t Plan() {
    ScratchLayout layout;
    const int64_t d = args_.head_dim, v = args_.value_dim, keys = document_.keys;
    const int64_t blocks = (keys + kKeyBlock - 1) / kKeyBlock;
    key_columns_at_ = layout.Add(blocks * PackedRightFloats(d, kKeyBlock));
    value_columns_at_ = layout.Add(blocks * PackedRightFloats(v, kKeyBlock));
    key_rows_at_ = layout.Add(blocks * PackedRightFloats(kKeyBlock, d));
    left_query_at_ = layout.Add(PackedLeftFloats(kQueryTile, d));
    left_dout_at_ = layout.Add(PackedLeftFloats(kQueryTile, v));
    right_query_at_ = layout.Add(PackedRightFloats(kQueryTile, d));
    right_dout_at_ = layout.Add(PackedRightFloats(kQueryTile, v));
    scores_at_ = layout.Add(kQueryTile * kScorePitch);
    gradients_at_ = layout.Add(kQueryTile * kScorePitch);
    deltas_at_ = layout.Add(kQueryTile);
    multiply_at_ = layout.Add(MultiplyScratchFloats(kQueryTile, d, kKeyBlock));
    return layout.size();
  }
  float* At(int64_t offset) const { return scratch_.data() + offset; }

  void PackKeysAndValues() {
    const int64_t d = args_.head_dim, v = args_.value_dim;
    for (int64_t begin = 0; begin < document_.keys; begin += kKeyBlock) {
      const int64_t count = std::min(kKeyBlock, document_.keys - begin);
      const int64_t row = document_.first_key + begin, block = begin / kKeyBlock;
      key_columns_.push_back(
          PackRight(HeadRows(args_.k, row, kv_head_, d, true), d, count,
                    At(key_columns_at_) + block * PackedRightFloats(d, kKeyBlock)));
      value_columns_.push_back(
          PackRight(HeadRows(args_.v, row, kv_head_, v, true), v, count,
                    At(value_columns_at_) + block * PackedRightFloats(v, kKeyBlock)));
      key_rows_.push_back(PackRight(HeadRows(args_.k, row, kv_head_, d), count, d,
                                    At(key_rows_at_) + block * PackedRightFloats(kKeyBlock, d)));
    }
  }

  void RunTile(int64_t query) {
    const int64_t d = args_.head_dim, v = args_.value_dim;
    rows_ = std::min(kQueryTile, document_.queries - query);
    const int64_t row = document_.first_query + query;
    const MatrixOperand q = HeadRows(args_.q, row, head_, d);
    const MatrixOperand dout = HeadRows(t_.dout, row, head_, v);
    left_query_ = PrepareLeftRows(q, rows_, d, At(left_query_at_));
    left_dout_ = PrepareLeftRows(dout, rows_, v, At(left_dout_at_));
    right_query_ = PackRight(q, rows_, d, At(right_query_at_));
    right_dout_ = PackRight(dout, rows_, v, At(right_dout_at_));
    DotRows(t_.dout.row<float>(row) + head_ * v, t_.dout.pitch(),
            t_.out.row<float>(row) + head_ * v, t_.out.pitch(), rows_, v, At(deltas_at_));
    const int64_t oldest = args_.window > 0 ? std::max<int64_t>(0, query - args_.window + 1) : 0;
    first_block_ = oldest / kKeyBlock;
    for (int64_t block = first_block_; block * kKeyBlock < query + rows_; ++block) {
      RunBlock(query, block);
    }
  }

  // Queries [query, query + rows_) against one block of keys.
  void RunBlock(int64_t query, int64_t block) {
    const int64_t first_key = block * kKeyBlock;
    const int64_t keys = std::min(kKeyBlock, document_.keys - first_key);
    for (int64_t begin = 0, end; begin < rows_; begin = end) {
      // Steps that see equally many keys make one product.
      const auto visible = [&](int64_t r) {
        return std::clamp<int64_t>(query + std::min(r + kStep, rows_) - first_key, 0, keys);
      };
      end = begin + kStep;
      while (end < rows_ && visible(end) == visible(begin)) end += kStep;
      end = std::min(end, rows_);
      ScoreRows(query, block, begin, end, visible(begin));
    }
    for (int64_t begin = 0, end; begin < keys; begin = end) {
      // The first row that sees any key of a step.
      const auto first_row = [&](int64_t c) {
        return std::max<int64_t>(0, first_key + c - query) / kPackedRowUnit * kPackedRowUnit;
      };
      if (first_row(begin) >= rows_) break;
      // This tile is the first that sees the keys from its own first position on.
      const auto is_first = [&](int64_t c) { return first_key + c >= query; };
      end = begin + kStep;
      while (end < keys && first_row(end) == first_row(begin) && is_first(end) == is_first(begin)) {
        end += kStep;
      }
      end = std::min(end, keys);
      AddKeyGradients(first_key, begin, end, first_row(begin), !is_first(begin));
    }
  }

  // P, dS and the block's part of dQ for rows [begin, end), of which none sees more than the first
  // `visible` of the block's keys.
  void ScoreRows(int64_t query, int64_t block, int64_t begin, int64_t end, int64_t visible) {
    if (visible == 0) return;
    const size_t b = static_cast<size_t>(block);
    const int64_t first_key = block * kKeyBlock, count = end - begin;
    const int64_t row = document_.first_query + query + begin;
    Product(left_query_, begin, key_columns_[b], scores(begin), {count, visible, args_.head_dim});
    Product(left_dout_, begin, value_columns_[b], gradients(begin),
            {count, visible, args_.value_dim});
    SoftmaxGradientBlock softmax;
    softmax.scores = scores(begin);
    softmax.gradients = gradients(begin);
    softmax.pitch = kScorePitch;
    softmax.rows = count;
    softmax.keys = visible;
    softmax.first_position = query + begin - first_key;
    softmax.window = args_.window;
    softmax.scale = static_cast<float>(args_.scale);
    softmax.lse = t_.lse.row<float>(row) + head_;
    softmax.lse_pitch = t_.lse.pitch();
    softmax.delta = At(deltas_at_) + begin;
    SoftmaxGradientOfBlock(softmax);
    Multiply({{gradients(begin), kScorePitch},
              key_rows_[b],
              t_.dq.row<float>(row) + head_ * args_.head_dim,
              t_.dq.pitch(),
              count,
              args_.head_dim,
              visible,
              block > first_block_},
             At(multiply_at_));
  }

  // out rows [begin, ...) = left right, whole vectors.
  void Product(const MatrixOperand& left, int64_t begin, const MatrixOperand& right, float* out,
               const Shape& shape) {
    Multiply({FromRow(left, begin), right, out, kScorePitch, shape.m,
              shape.n == right.cols ? PaddedColumns(shape.n) : shape.n, shape.k},
             nullptr);
  }

  // dK and dV of keys [begin, end) of a block from rows [first_row, rows_), added or written.
  void AddKeyGradients(int64_t first_key, int64_t begin, int64_t end, int64_t first_row,
                       bool accumulate) {
    const size_t member = static_cast<size_t>(head_ % t_.group());
    const int64_t row = document_.first_key + first_key + begin;
    AddKeyGradient(scores(first_row) + begin, right_dout_, first_row, t_.dv[member], row,
                   args_.value_dim, end - begin, accumulate);
    AddKeyGradient(gradients(first_row) + begin, right_query_, first_row, t_.dk[member], row,
                   args_.head_dim, end - begin, accumulate);
  }
  void AddKeyGradient(const float* left, MatrixOperand right, int64_t first_row, const Tensor& out,
                      int64_t out_row, int64_t dim, int64_t keys, bool accumulate) {
    right.first_row = first_row;
    Multiply({{left, kScorePitch, true},
              right,
              out.row<float>(out_row) + kv_head_ * dim,
              out.pitch(),
              keys,
              dim,
              rows_ - first_row,
              accumulate},
             nullptr);
  }

  // Room for the columns that a panel stores past the block.
  static constexpr int64_t kScorePitch = kKeyBlock + kMaxPanel;
  float* scores(int64_t row) const { return At(scores_at_) + row * kScorePitch; }
  float* gradients(int64_t row) const { return At(gradients_at_) + row * kScorePitch; }

  const BackwardTensors& t_;
  const AttentionArgs& args_;
  const AttentionDocument& document_;
  const int64_t head_, kv_head_;
  int64_t key_columns_at_ = 0, value_columns_at_ = 0, key_rows_at_ = 0, left_query_at_ = 0,
          left_dout_at_ = 0, right_query_at_ = 0, right_dout_at_ = 0, scores_at_ = 0,
          gradients_at_ = 0, deltas_at_ = 0, multiply_at_ = 0;  // in scratch_; set by Plan
  const Scratch scratch_;
  // By block: K^T and V^T for scores, K for dQ.
  std::vector<MatrixOperand> key_columns_, value_columns_, key_rows_;
  // Of the present tile.
  int64_t rows_ = 0, first_block_ = 0;
  MatrixOperand left_query_, left_dout_, right_query_, right_dout_;
};

// Adds the shares of the other members of each group to the first's, in order.
void AddShares(const std::vector<Tensor>& shares) {
  const Tensor& sum = shares[0];
  for (size_t g = 1; g < shares.size(); ++g) {
    ParallelRows(sum.rows(), sum.cols(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        AddTo(shares[g].row<float>(r), sum.row<float>(r), sum.cols());
      }
    });
  }
}

}  // namespace
}  // namespace cpu

void CpuBackend::AttentionBackward(const AttentionArgs& args, const Tensor& out, const Tensor& lse,
                                   const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                   const Tensor& dv) {
  const ExecContext& context = CurrentContext();
  std::vector<cpu::AttentionDocument> documents = cpu::DocumentsOf(args);
  std::stable_sort(documents.begin(), documents.end(),
                   [](const auto& a, const auto& b) { return a.queries > b.queries; });
  cpu::BackwardTensors tensors{args, out, lse, dout, dq, {dk}, {dv}};
  for (int64_t g = 1; g < tensors.group(); ++g) {
    tensors.dk.push_back(Tensor::Empty(dk.shape()));
    tensors.dv.push_back(Tensor::Empty(dv.shape()));
  }
  const int64_t items = static_cast<int64_t>(documents.size()) * args.num_heads;
  ParallelForDynamic(items, context.num_threads, [&](int64_t i) {
    const cpu::AttentionDocument& document = documents[static_cast<size_t>(i / args.num_heads)];
    MF_CHECK_EQ(document.queries, document.keys);
    cpu::AttentionBackwardItem(tensors, document, i % args.num_heads, *context.allocator).Run();
  });
  cpu::AddShares(tensors.dk);
  cpu::AddShares(tensors.dv);
}

}  // namespace meshfold
