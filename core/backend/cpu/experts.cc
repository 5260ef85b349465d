// SwiGLU experts over rows sorted by expert: y_r = c_r W_down (silu(g) u), [g | u] = W_gate_up x_r
// (Shazeer 2020, "GLU Variants Improve Transformer").
//
// The forward keeps only [g | u]. With a = silu(g) u and s = W_down^T dy, the backward is
//   dc = s . a,  da = c s,  du = da silu(g),  dg = da u sigma(g) (1 + g (1 - sigma(g))),
//   dx = W_gate_up^T [dg | du],  dW_gate_up = [dg | du]^T x,  dW_down = dy^T (c a).
#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/functional/function_ref.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/experts_row.h"
#include "core/backend/cpu/matrix_kernel.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/experts.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/matrix_kernel_exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// c silu(g) u: one place, since the forward and both kinds of backward must agree in every bit.
HWY_INLINE FloatVec Activation(FloatVec silu, FloatVec up, FloatVec weight) {
  return hn::Mul(hn::Mul(silu, up), weight);
}

void ExpertActivation(const cpu::SwiGluRow& row) {
  const FloatVec weight = hn::Set(FloatTag(), row.weight);
  VectorLoop(row.n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec g = step.Load(row.gate_up + i), u = step.Load(row.gate_up + row.n + i);
    step.Store(Activation(hn::Mul(g, ShortSigmoid(g)), u, weight), row.activation + i);
  });
}

// Returns dc.
float ExpertActivationBackward(const cpu::SwiGluRow& row) {
  const FloatVec one = hn::Set(FloatTag(), 1.0f), weight = hn::Set(FloatTag(), row.weight);
  FloatVec sum = hn::Zero(FloatTag());
  VectorLoop(row.n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec g = step.Load(row.gate_up + i), u = step.Load(row.gate_up + row.n + i);
    const FloatVec s = step.Load(row.activation + i);
    const FloatVec sigma = ShortSigmoid(g), silu = hn::Mul(g, sigma), da = hn::Mul(s, weight);
    sum = hn::MulAdd(s, hn::Mul(silu, u), sum);
    const FloatVec slope = hn::Mul(sigma, hn::MulAdd(g, hn::Sub(one, sigma), one));
    step.Store(hn::Mul(hn::Mul(da, u), slope), row.dgate_up + i);
    step.Store(hn::Mul(da, silu), row.dgate_up + row.n + i);
    step.Store(Activation(silu, u, weight), row.activation + i);
  });
  return SumLanes(sum);
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(ExpertActivation);
HWY_EXPORT(ExpertActivationBackward);

cpu::MatrixOperand Operand(const Tensor& x, bool transpose = false) {
  return {x.raw(), x.pitch(), transpose, x.dtype()};
}

// Calls body(group, num_threads) for every group. Groups run side by side on one thread each,
// large ones first; a group so large that its thread would be waited for runs alone on all threads.
// How a group is run never changes its bits.
void ForEachGroup(const RowCounts& rows, int num_threads,
                  absl::FunctionRef<void(int64_t group, int num_threads)> body) {
  std::vector<int64_t> order(static_cast<size_t>(rows.num_groups()));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return rows.count(a) > rows.count(b); });
  size_t alone = 0;
  for (int64_t rest = rows.total(); alone < order.size() && num_threads > 1; ++alone) {
    const int64_t count = rows.count(order[alone]);
    if (count * 4 * num_threads <= rest) break;
    body(order[alone], num_threads);
    rest -= count;
  }
  ParallelForDynamic(static_cast<int64_t>(order.size() - alone), num_threads,
                     [&](int64_t i) { body(order[alone + static_cast<size_t>(i)], 1); });
}

// One group's rows of all tensors, and what its steps share.
class Group {
 public:
  Group(const ExpertsArgs& args, int64_t index, int num_threads, Allocator& allocator)
      : args_(args),
        index_(index),
        begin_(args.rows.begin(index)),
        rows_(args.rows.count(index)),
        features_(args.gate_up[static_cast<size_t>(index)].rows() / 2),
        num_threads_(num_threads),
        allocator_(allocator) {}

  int64_t rows() const { return rows_; }
  int64_t features() const { return features_; }
  Tensor Rows(const Tensor& x) const { return x.Narrow(begin_, rows_); }
  const Tensor& gate_up() const { return args_.gate_up[static_cast<size_t>(index_)]; }
  const Tensor& down() const { return args_.down[static_cast<size_t>(index_)]; }
  const Tensor& Of(absl::Span<const Tensor> weights) const {
    return weights[static_cast<size_t>(index_)];
  }
  Tensor x() const { return Rows(args_.x); }
  // Scratch for one tensor of this group.
  Tensor New(int64_t cols) const { return Tensor::Empty({rows_, cols}, DType::kF32, allocator_); }
  float weight(int64_t row) const {
    return args_.row_weights.defined() ? args_.row_weights.data<float>()[begin_ + row] : 1.0f;
  }
  // out = op(a) op(b), on this group's threads.
  void Multiply(const cpu::MatrixOperand& a, const cpu::MatrixOperand& b, int64_t k,
                const Tensor& out, bool accumulate = false) const {
    cpu::MultiplyParallel(
        {a, b, out.data<float>(), out.pitch(), out.rows(), out.cols(), k, accumulate}, num_threads_,
        allocator_);
  }
  void ForEachRow(absl::FunctionRef<void(int64_t row)> body) const {
    const int64_t grain = std::max<int64_t>(1, cpu::kMinElementsPerThread / features_);
    ParallelFor(rows_, grain, num_threads_, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) body(r);
    });
  }

 private:
  const ExpertsArgs& args_;
  const int64_t index_, begin_, rows_, features_;
  const int num_threads_;
  Allocator& allocator_;
};

// activation = c silu(g) u from the stored hidden rows.
void Activate(const Group& group, const Tensor& hidden, const Tensor& activation) {
  group.ForEachRow([&](int64_t r) {
    HWY_DYNAMIC_DISPATCH(ExpertActivation)
    ({hidden.row<float>(r), group.features(), group.weight(r), activation.row<float>(r), nullptr});
  });
}

void ForwardGroup(const Group& group, const Tensor& hidden, const Tensor& y) {
  if (group.rows() == 0) return;
  group.Multiply(Operand(group.x()), Operand(group.gate_up(), true), group.gate_up().cols(),
                 hidden);
  const Tensor activation = group.New(group.features());
  Activate(group, hidden, activation);
  group.Multiply(Operand(activation), Operand(group.down(), true), group.features(), y);
}

// Gradients of the inputs; returns the activations c a where the weights will need them.
Tensor BackwardInputs(const Group& group, const ExpertsBackwardArgs& backward,
                      const Tensor& dhidden) {
  const Tensor activation = group.New(group.features()), hidden = group.Rows(backward.hidden);
  const Tensor drow_weights =
      backward.drow_weights.defined() ? group.Rows(backward.drow_weights) : Tensor();
  group.Multiply(Operand(group.Rows(backward.dy)), Operand(group.down()), group.down().rows(),
                 activation);
  group.ForEachRow([&](int64_t r) {
    const float dweight = HWY_DYNAMIC_DISPATCH(ExpertActivationBackward)(
        {hidden.row<float>(r), group.features(), group.weight(r), activation.row<float>(r),
         dhidden.row<float>(r)});
    if (drow_weights.defined()) drow_weights.data<float>()[r] = dweight;
  });
  if (backward.dx.defined()) {
    group.Multiply(Operand(dhidden), Operand(group.gate_up()), group.gate_up().rows(),
                   group.Rows(backward.dx));
  }
  return activation;
}

void BackwardWeights(const Group& group, const ExpertsBackwardArgs& backward, const Tensor& dhidden,
                     const Tensor& activation) {
  if (!backward.ddown.empty()) {
    group.Multiply(Operand(group.Rows(backward.dy), true), Operand(activation), group.rows(),
                   group.Of(backward.ddown), backward.accumulate_weights);
  }
  if (!backward.dgate_up.empty()) {
    group.Multiply(Operand(dhidden, true), Operand(group.x()), group.rows(),
                   group.Of(backward.dgate_up), backward.accumulate_weights);
  }
}

void BackwardGroup(const Group& group, const ExpertsBackwardArgs& backward) {
  const bool keeps_dhidden = backward.dhidden.defined();
  const Tensor dhidden =
      keeps_dhidden ? group.Rows(backward.dhidden) : group.New(2 * group.features());
  Tensor activation;
  if (!backward.dhidden_is_input) {
    activation = BackwardInputs(group, backward, dhidden);
  } else if (!backward.ddown.empty()) {
    activation = group.New(group.features());
    Activate(group, group.Rows(backward.hidden), activation);
  }
  BackwardWeights(group, backward, dhidden, activation);
}

}  // namespace

void CpuBackend::ExpertsForward(const ExpertsArgs& args, const Tensor& hidden, const Tensor& y) {
  const ExecContext& context = CurrentContext();
  MF_CHECK_EQ(args.x.rows(), args.rows.total());
  ForEachGroup(args.rows, context.num_threads, [&](int64_t index, int num_threads) {
    const Group group(args, index, num_threads, *context.allocator);
    ForwardGroup(group, group.Rows(hidden), group.Rows(y));
  });
}

void CpuBackend::ExpertsBackward(const ExpertsArgs& args, const ExpertsBackwardArgs& backward) {
  const ExecContext& context = CurrentContext();
  MF_CHECK_EQ(args.x.rows(), args.rows.total());
  MF_CHECK(!backward.dhidden_is_input || backward.dhidden.defined());
  ForEachGroup(args.rows, context.num_threads, [&](int64_t index, int num_threads) {
    BackwardGroup(Group(args, index, num_threads, *context.allocator), backward);
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
