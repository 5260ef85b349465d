// The loss head: cross-entropy of x W^T by chunks of rows,
//   loss = scale sum_t (lse_t - z_t[target]),  dz = scale (softmax(z) - onehot(target)),
// with the logits of one chunk in memory at a time, turned into their gradient where they lie.
#include <algorithm>
#include <cmath>
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

// Returns lse - z[target], and writes the gradient when wanted.
double CrossEntropyOfRow(const cpu::CrossEntropyRow& row) {
  const FloatTag d;
  // NaN and infinities reach the loss through the sum below.
  FloatVec max = hn::Set(d, row.logits[0]);
  VectorLoop(row.n, [&](int64_t i, auto step) HWY_ATTR {
    max = hn::Max(max, step.Fill(step.Load(row.logits + i), row.logits[0]));
  });
  const float highest = hn::GetLane(hn::MaxOfLanes(d, max));
  const FloatVec shift = hn::Set(d, highest);
  const float target_logit = row.logits[row.target];
  // Sums of up to kBlock terms a lane in f32, of blocks in f64: vocabularies are large.
  constexpr int64_t kBlock = 256 * kFloatLanes;
  double total = 0;
  for (int64_t begin = 0; begin < row.n; begin += kBlock) {
    FloatVec sum = hn::Zero(d);
    VectorLoop(std::min(kBlock, row.n - begin), [&](int64_t i, auto step) HWY_ATTR {
      const FloatVec e = ShortExp(hn::Sub(step.Load(row.logits + begin + i), shift));
      sum = hn::Add(sum, step.Fill(e, 0.0f));
      if (row.dlogits != nullptr) step.Store(e, row.dlogits + begin + i);
    });
    total += static_cast<double>(SumLanes(sum));
  }
  if (row.dlogits != nullptr) {
    const FloatVec factor = hn::Set(d, static_cast<float>(row.scale / total));
    VectorLoop(row.n, [&](int64_t i, auto step) HWY_ATTR {
      step.Store(hn::Mul(step.Load(row.dlogits + i), factor), row.dlogits + i);
    });
    row.dlogits[row.target] -= row.scale;
  }
  return std::log(total) + highest - target_logit;
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(CrossEntropyOfRow);

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
        losses_(Tensor::Contiguous({args.x.rows()}, DType::kF64)) {}

  // Returns the sum over counted rows, before the scale.
  double Run() {
    const int64_t rows = args_.x.rows(), chunk = std::min(rows, ChunkRows(args_.weight.rows()));
    const bool needs_scratch = wants_gradient() || !args_.logits.defined();
    if (needs_scratch) scratch_ = Tensor::Empty({chunk, args_.weight.rows()});
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
    cpu::ParallelRows(rows, logits.cols(), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) RunRow(begin + r, logits, dlogits, r);
    });
    if (args_.dx.defined()) {
      Multiply(Operand(dlogits), Operand(args_.weight), dlogits.cols(),
               args_.dx.Narrow(begin, rows));
    }
    if (args_.dweight.defined()) Accumulate(dlogits, x, begin);
  }

  void RunRow(int64_t t, const Tensor& logits, const Tensor& dlogits, int64_t r) {
    const int64_t vocab = logits.cols();
    float* gradient = wants_gradient() ? dlogits.row<float>(r) : nullptr;
    double& loss = losses_.data<double>()[t];
    if (targets_[t] < 0) {
      loss = 0;
      if (gradient != nullptr) std::fill_n(gradient, vocab, 0.0f);
      return;
    }
    MF_CHECK_LT(targets_[t], vocab) << "target of row " << t;
    loss = HWY_DYNAMIC_DISPATCH(CrossEntropyOfRow)(
        {logits.row<float>(r), vocab, targets_[t], static_cast<float>(args_.scale), gradient});
  }

  const LinearCrossEntropyArgs& args_;
  const ExecContext& context_;
  const int32_t* targets_;
  Tensor losses_;   // f64 [T]: added in row order, whatever thread computed them
  Tensor scratch_;  // logits of a chunk, then their gradient
};

}  // namespace

void CpuBackend::LinearCrossEntropy(const LinearCrossEntropyArgs& args) {
  MF_CHECK_EQ(args.x.cols(), args.weight.cols());
  args.loss.data<float>()[0] = static_cast<float>(args.scale * LossHead(args).Run());
}

}  // namespace meshfold
#endif  // HWY_ONCE
