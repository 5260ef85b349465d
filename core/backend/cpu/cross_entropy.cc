// The loss head: cross-entropy of x W^T by chunks of rows,
//   loss = scale sum_t (lse_t - z_t[target]),  dz = scale (softmax(z) - onehot(target)),
// with the logits of one chunk in memory at a time, turned into their gradient where they lie.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/cross_entropy_row.h"
#include "core/backend/cpu/matrix_kernel.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/matrix_kernel_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

cpu::ExpSum SumExp(const cpu::SumExpRow& row) {
  const FloatTag d;
  // NaN and infinities reach the loss through the sum below.
  FloatVec max = hn::Set(d, row.logits[0]);
  VectorLoop(row.n, [&](int64_t i, auto step) HWY_ATTR {
    max = hn::Max(max, step.Fill(step.Load(row.logits + i), row.logits[0]));
  });
  const float highest = hn::GetLane(hn::MaxOfLanes(d, max));
  const FloatVec shift = hn::Set(d, highest);
  // Sums of up to kBlock terms a lane in f32, of blocks in f64: vocabularies are large.
  constexpr int64_t kBlock = 256 * kFloatLanes;
  double total = 0;
  for (int64_t begin = 0; begin < row.n; begin += kBlock) {
    FloatVec sum = hn::Zero(d);
    VectorLoop(std::min(kBlock, row.n - begin), [&](int64_t i, auto step) HWY_ATTR {
      const FloatVec e = ShortExp(hn::Sub(step.Load(row.logits + begin + i), shift));
      sum = hn::Add(sum, step.Fill(e, 0.0f));
      if (row.exps != nullptr) step.Store(e, row.exps + begin + i);
    });
    total += static_cast<double>(SumLanes(sum));
  }
  return {highest, total};
}

void ScaleRow(float* row, int64_t n, float by) {
  const FloatVec factor = hn::Set(FloatTag(), by);
  VectorLoop(n, [&](int64_t i, auto step)
                    HWY_ATTR { step.Store(hn::Mul(step.Load(row + i), factor), row + i); });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(SumExp);
HWY_EXPORT(ScaleRow);

// Rows of logits in memory at a time: about 16 MiB of them, but enough rows that packing the weight
// costs little beside the product. Part of dweight's bits, so a function of the shapes alone.
int64_t ChunkRows(int64_t vocab) {
  constexpr int64_t kElements = int64_t{4} << 20, kMinRows = 128, kMaxRows = 2048;
  return std::clamp(kElements / std::max<int64_t>(vocab, 1) / kMinRows * kMinRows, kMinRows,
                    kMaxRows);
}

cpu::MatrixOperand Operand(const Tensor& x, bool transpose = false) {
  return {x.raw(), x.pitch(), transpose, x.dtype()};
}

class LossHead {
 public:
  explicit LossHead(const LinearCrossEntropyArgs& args)
      : args_(args),
        context_(CurrentContext()),
        targets_(args.targets.data<int32_t>()),
        vocab_(args.weight.rows()),
        losses_(Tensor::Contiguous({args.x.rows()}, DType::kF64)) {}

  // Returns the sum over counted rows, before the scale.
  double Run() {
    const int64_t whole = args_.vocab_size == 0 ? vocab_ : args_.vocab_size;
    const int64_t rows = args_.x.rows(), chunk = std::min(rows, ChunkRows(whole));
    const bool needs_scratch = wants_gradient() || !args_.logits.defined();
    if (needs_scratch) scratch_ = Tensor::Empty({chunk, vocab_});
    if (args_.combine) statistics_ = Tensor::Contiguous({chunk, 3}, DType::kF64);
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      RunChunk(begin, std::min(chunk, rows - begin));
    }
    if (rows == 0 && args_.dweight.defined()) Accumulate(Tensor::Empty({0, 1}), args_.x, 0);
    double loss = 0;
    for (int64_t t = 0; t < rows; ++t) loss += losses_.data<double>()[t];
    return loss;
  }

 private:
  bool wants_gradient() const { return args_.dx.defined() || args_.dweight.defined(); }

  void Multiply(const cpu::MatrixOperand& a, const cpu::MatrixOperand& b, int64_t k,
                const Tensor& out, bool accumulate = false) {
    cpu::MultiplyParallel(
        {a, b, out.data<float>(), out.pitch(), out.rows(), out.cols(), k, accumulate},
        context_.num_threads, *context_.allocator);
  }

  void Accumulate(const Tensor& dlogits, const Tensor& x, int64_t begin) {
    Multiply(Operand(dlogits, true), Operand(x), x.rows(), args_.dweight,
             args_.accumulate_dweight || begin > 0);
  }

  void RunChunk(int64_t begin, int64_t rows) {
    const Tensor x = args_.x.Narrow(begin, rows);
    const Tensor dlogits = scratch_.defined() ? scratch_.Narrow(0, rows) : Tensor();
    const Tensor logits = args_.logits.defined() ? args_.logits.Narrow(begin, rows) : dlogits;
    Multiply(Operand(x), Operand(args_.weight, true), x.cols(), logits);
    const Chunk at{begin, rows, logits, wants_gradient() ? dlogits : Tensor()};
    if (args_.combine) {
      RunInParts(at);
    } else {
      cpu::ParallelRows(rows, vocab_, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; ++r) FinishRow(at, r, StatisticsOf(at, r), 1.0);
      });
    }
    if (args_.dx.defined()) {
      Multiply(Operand(dlogits), Operand(args_.weight), dlogits.cols(),
               args_.dx.Narrow(begin, rows));
    }
    if (args_.dweight.defined()) Accumulate(dlogits, x, begin);
  }

  // Rows [begin, begin + rows) of x, with their logits and the place of their gradient.
  struct Chunk {
    int64_t begin, rows;
    Tensor logits, dlogits;  // [rows, V]; dlogits undefined where none is wanted
  };
  // Of one row: what CombineStatistics speaks of.
  struct Statistics {
    double highest = 0, total = 0, target_logit = 0;
  };

  bool Counts(int64_t t) const { return targets_[t] >= 0; }
  // The target's class here; outside [0, vocab_) where another part has it.
  int64_t LocalTarget(int64_t t) const { return targets_[t] - args_.first_id; }

  // Leaves exp(z - highest) where the gradient will be.
  Statistics StatisticsOf(const Chunk& chunk, int64_t r) const {
    const int64_t t = chunk.begin + r, target = LocalTarget(t);
    if (!Counts(t) || vocab_ == 0) return {-std::numeric_limits<double>::infinity(), 0, 0};
    const float* logits = chunk.logits.row<float>(r);
    // Before the sum, which may write over the logits.
    const double target_logit = target >= 0 && target < vocab_ ? logits[target] : 0.0;
    float* exps = chunk.dlogits.defined() ? chunk.dlogits.row<float>(r) : nullptr;
    const cpu::ExpSum sum = HWY_DYNAMIC_DISPATCH(SumExp)({logits, vocab_, exps});
    return {sum.highest, sum.total, target_logit};
  }

  // `share`: exp(highest of this part - highest of all).
  void FinishRow(const Chunk& chunk, int64_t r, const Statistics& all, double share) {
    const int64_t t = chunk.begin + r, target = LocalTarget(t);
    float* gradient = chunk.dlogits.defined() ? chunk.dlogits.row<float>(r) : nullptr;
    losses_.data<double>()[t] = 0;
    if (!Counts(t)) {
      if (gradient != nullptr) std::fill_n(gradient, vocab_, 0.0f);
      return;
    }
    MF_CHECK_LT(target, args_.combine ? args_.vocab_size : vocab_) << "target of row " << t;
    losses_.data<double>()[t] = std::log(all.total) + all.highest - all.target_logit;
    if (gradient == nullptr) return;
    // As one process does it: the scale rounded first.
    const double scale = static_cast<float>(args_.scale);
    HWY_DYNAMIC_DISPATCH(ScaleRow)
    (gradient, vocab_, static_cast<float>(scale * share / all.total));
    if (target >= 0 && target < vocab_) gradient[target] -= static_cast<float>(scale);
  }

  // The vocabulary is cut: rows wait for the other parts.
  void RunInParts(const Chunk& chunk) {
    const Tensor statistics = statistics_.Narrow(0, chunk.rows);
    std::vector<double> highest(static_cast<size_t>(chunk.rows));
    cpu::ParallelRows(chunk.rows, vocab_, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const Statistics own = StatisticsOf(chunk, r);
        highest[static_cast<size_t>(r)] = own.highest;
        double* row = statistics.row<double>(r);
        row[0] = own.highest, row[1] = own.total, row[2] = own.target_logit;
      }
    });
    args_.combine(statistics);
    cpu::ParallelRows(chunk.rows, vocab_, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const double* row = statistics.row<double>(r);
        const double share = std::exp(highest[static_cast<size_t>(r)] - row[0]);
        FinishRow(chunk, r, {row[0], row[1], row[2]}, share);
      }
    });
  }

  const LinearCrossEntropyArgs& args_;
  const ExecContext& context_;
  const int32_t* targets_;
  const int64_t vocab_;  // classes here
  Tensor losses_;        // f64 [T]: added in row order, whatever thread computed them
  Tensor scratch_;       // logits of a chunk, then their gradient
  Tensor statistics_;    // f64 [chunk, 3], where the vocabulary is cut
};

}  // namespace

void CpuBackend::LinearCrossEntropy(const LinearCrossEntropyArgs& args) {
  MF_CHECK_EQ(args.x.cols(), args.weight.cols());
  args.loss.data<float>()[0] = static_cast<float>(args.scale * LossHead(args).Run());
}

}  // namespace meshfold
#endif  // HWY_ONCE
