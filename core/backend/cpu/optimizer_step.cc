// Update rules in one pass over memory: every element of parameter, gradient and moments is read
// once and written once. Elements are independent, so bits do not depend on the threads.
#include <algorithm>
#include <array>
#include <cmath>

#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/kernel_args.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/optimizer_step.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

// Moments of idle parameters decay towards zero for ever; below the normal numbers an operation
// costs 100 times more, so they end at zero there.
HWY_INLINE FloatVec FlushTiny(FloatVec x) {
  const FloatVec smallest_normal = hn::Set(FloatTag(), 0x1p-126f);
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), smallest_normal), x);
}

// p -= lr wd p; m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// p -= lr / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + eps): the order of PyTorch's AdamW.
void AdamWKernel(const cpu::AdamWFactors& factors, const cpu::AdamWRun& run) {
  const FloatTag d;
  const FloatVec decay = hn::Set(d, factors.decay), scale = hn::Set(d, factors.grad_scale);
  const FloatVec beta1 = hn::Set(d, factors.beta1), rest1 = hn::Set(d, factors.one_minus_beta1);
  const FloatVec beta2 = hn::Set(d, factors.beta2), rest2 = hn::Set(d, factors.one_minus_beta2);
  const FloatVec step_size = hn::Set(d, factors.step_size), eps = hn::Set(d, factors.eps);
  const FloatVec inverse_root = hn::Set(d, factors.inverse_root);
  VectorLoop(run.n, [&](int64_t i, auto step) HWY_ATTR {
    FetchAhead(run.grad + i);
    FetchAheadToWrite(run.m + i);
    FetchAheadToWrite(run.v + i);
    FetchAheadToWrite(run.param + i);
    const FloatVec g = hn::Mul(scale, step.Load(run.grad + i));
    const FloatVec m = FlushTiny(hn::MulAdd(rest1, g, hn::Mul(beta1, step.Load(run.m + i))));
    const FloatVec v =
        FlushTiny(hn::MulAdd(rest2, hn::Mul(g, g), hn::Mul(beta2, step.Load(run.v + i))));
    const FloatVec root = hn::MulAdd(hn::Sqrt(v), inverse_root, eps);
    const FloatVec p = hn::Mul(decay, step.Load(run.param + i));
    step.Store(m, run.m + i);
    step.Store(v, run.v + i);
    step.Store(hn::NegMulAdd(step_size, hn::Div(m, root), p), run.param + i);
  });
}

void SgdKernel(const cpu::SgdRun& run) {
  const FloatTag d;
  const FloatVec decay = hn::Set(d, run.decay), scale = hn::Set(d, run.grad_scale);
  const FloatVec momentum = hn::Set(d, run.momentum), lr = hn::Set(d, run.lr);
  VectorLoop(run.n, [&](int64_t i, auto step) HWY_ATTR {
    FloatVec g = hn::Mul(scale, step.Load(run.grad + i));
    if (run.momentum_buffer != nullptr) {
      g = FlushTiny(hn::MulAdd(momentum, step.Load(run.momentum_buffer + i), g));
      step.Store(g, run.momentum_buffer + i);
    }
    const FloatVec p = hn::Mul(decay, step.Load(run.param + i));
    step.Store(hn::NegMulAdd(lr, g, p), run.param + i);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {

HWY_EXPORT(AdamWKernel);
HWY_EXPORT(SgdKernel);

namespace {

// Runs longer than this are cut, so that a master just updated is rounded while still in cache.
constexpr int64_t kPiece = 4096;

float ScalarOrOne(const Tensor& scalar) { return scalar.defined() ? scalar.data<float>()[0] : 1; }

// Contiguous tensors take the shape of one that is padded, so that all walk the same rows.
template <size_t N>
std::array<Tensor, N> InCommonShape(std::array<Tensor, N> tensors) {
  const Tensor* padded = nullptr;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined() && !tensor.IsContiguous()) padded = &tensor;
  }
  const Shape shape = padded == nullptr ? Shape{tensors[0].numel()} : padded->shape();
  for (Tensor& tensor : tensors) {
    if (tensor.defined()) tensor = tensor.Reshape(shape);
  }
  return tensors;
}

// Updates `master` (the f32 parameter itself when there is no master) by update(offsets, begin,
// count) on short runs, then rounds the master into a 16-bit `param`.
void UpdateRuns(absl::Span<const Tensor> tensors, const Tensor& param, bool has_master,
                absl::FunctionRef<void(const cpu::RunOffsets&, int64_t, int64_t)> update) {
  const int64_t param_size = SizeOf(param.dtype());
  char* param_data = static_cast<char*>(param.raw());
  const float* master = tensors[0].data<float>();
  cpu::ParallelRuns(tensors, [&](const cpu::RunOffsets& at, int64_t count) {
    for (int64_t begin = 0; begin < count; begin += kPiece) {
      const int64_t n = std::min(kPiece, count - begin);
      update(at, begin, n);
      if (!has_master) continue;
      cpu::ConvertRun(DType::kF32, master + at.at(0) + begin, param.dtype(),
                      param_data + (at.at(1) + begin) * param_size, n);
    }
  });
}

}  // namespace

void CpuBackend::AdamW(const AdamWArgs& args) {
  const bool has_master = args.master.defined();
  const Tensor& updated = has_master ? args.master : args.param;
  const double correction1 = 1 - std::pow(args.beta1, static_cast<double>(args.step));
  const double correction2 = 1 - std::pow(args.beta2, static_cast<double>(args.step));
  cpu::AdamWFactors factors;
  factors.decay = static_cast<float>(1 - args.lr * args.weight_decay);
  factors.beta1 = static_cast<float>(args.beta1);
  factors.one_minus_beta1 = static_cast<float>(1 - args.beta1);
  factors.beta2 = static_cast<float>(args.beta2);
  factors.one_minus_beta2 = static_cast<float>(1 - args.beta2);
  factors.step_size = static_cast<float>(args.lr / correction1);
  factors.inverse_root = static_cast<float>(1 / std::sqrt(correction2));
  factors.eps = static_cast<float>(args.eps);
  factors.grad_scale = ScalarOrOne(args.grad_scale);
  const auto kernel = HWY_DYNAMIC_DISPATCH(AdamWKernel);
  const std::array<Tensor, 5> tensors =
      InCommonShape<5>({updated, args.param, args.grad, args.m, args.v});
  float* param = tensors[0].data<float>();
  const float* grad = tensors[2].data<float>();
  float* m = tensors[3].data<float>();
  float* v = tensors[4].data<float>();
  UpdateRuns(tensors, tensors[1], has_master,
             [&](const cpu::RunOffsets& at, int64_t begin, int64_t count) {
               cpu::AdamWRun run;
               run.param = param + at.at(0) + begin;
               run.grad = grad + at.at(2) + begin;
               run.m = m + at.at(3) + begin;
               run.v = v + at.at(4) + begin;
               run.n = count;
               kernel(factors, run);
             });
}

void CpuBackend::Sgd(const SgdArgs& args) {
  const bool has_master = args.master.defined();
  const bool has_momentum = args.momentum_buffer.defined();
  const auto kernel = HWY_DYNAMIC_DISPATCH(SgdKernel);
  const std::array<Tensor, 4> tensors = InCommonShape<4>(
      {has_master ? args.master : args.param, args.param, args.grad, args.momentum_buffer});
  cpu::SgdRun step;
  step.decay = static_cast<float>(1 - args.lr * args.weight_decay);
  step.momentum = static_cast<float>(args.momentum);
  step.lr = static_cast<float>(args.lr);
  step.grad_scale = ScalarOrOne(args.grad_scale);
  float* param = tensors[0].data<float>();
  const float* grad = tensors[2].data<float>();
  float* momentum_buffer = has_momentum ? tensors[3].data<float>() : nullptr;
  UpdateRuns(tensors, tensors[1], has_master,
             [&](const cpu::RunOffsets& at, int64_t begin, int64_t count) {
               cpu::SgdRun run = step;
               run.param = param + at.at(0) + begin;
               run.grad = grad + at.at(2) + begin;
               run.momentum_buffer = has_momentum ? momentum_buffer + at.at(3) + begin : nullptr;
               run.n = count;
               kernel(run);
             });
}

}  // namespace meshfold
#endif  // HWY_ONCE
