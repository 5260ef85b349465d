// Kernels that treat elements alone: one pass over memory, bits independent of how it is split.
#include "core/backend/cpu/convert.h"
#include "core/backend/cpu/cpu_backend.h"
#include "core/backend/cpu/kernel_args.h"
#include "core/backend/cpu/row_loop.h"
#include "core/base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/elementwise.cc"
#include "hwy/foreach_target.h"  // before highway.h
#include "hwy/highway.h"
// After it.
#include "core/backend/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

template <class F>
HWY_INLINE void MapOne(const cpu::MapRun& run, const F& f) {
  VectorLoop(run.n, [&](int64_t i, auto step)
                        HWY_ATTR { step.Store(f(step.Load(run.a + i)), run.out + i); });
}

template <class F>
HWY_INLINE void MapTwo(const cpu::MapRun& run, const F& f) {
  VectorLoop(run.n, [&](int64_t i, auto step) HWY_ATTR {
    step.Store(f(step.Load(run.a + i), step.Load(run.b + i)), run.out + i);
  });
}

HWY_INLINE FloatVec Splat(float value) { return hn::Set(FloatTag(), value); }

void AddRun(const cpu::MapRun& run) {
  MapTwo(run, [](FloatVec a, FloatVec b) HWY_ATTR { return hn::Add(a, b); });
}

void MultiplyRun(const cpu::MapRun& run) {
  MapTwo(run, [](FloatVec a, FloatVec b) HWY_ATTR { return hn::Mul(a, b); });
}

void AxpyRun(const cpu::MapRun& run) {
  const FloatVec alpha = Splat(run.s);
  MapTwo(run, [&](FloatVec x, FloatVec y) HWY_ATTR { return hn::MulAdd(alpha, x, y); });
}

void ScaleRun(const cpu::MapRun& run) {
  const FloatVec alpha = Splat(run.s);
  MapOne(run, [&](FloatVec x) HWY_ATTR { return hn::Mul(alpha, x); });
}

void SigmoidRun(const cpu::MapRun& run) {
  MapOne(run, [](FloatVec x) HWY_ATTR { return SigmoidOf(x); });
}

void SigmoidBackwardRun(const cpu::MapRun& run) {
  MapTwo(run, [](FloatVec y, FloatVec dy)
                  HWY_ATTR { return hn::Mul(hn::Mul(dy, y), hn::Sub(Splat(1.0f), y)); });
}

// Comparisons rather than Min and Max, so that NaN passes through on every instruction set.
void ClampRun(const cpu::MapRun& run) {
  const FloatVec low = Splat(run.s), high = Splat(run.t);
  MapOne(run, [&](FloatVec x) HWY_ATTR {
    return hn::IfThenElse(hn::Lt(x, low), low, hn::IfThenElse(hn::Gt(x, high), high, x));
  });
}

void ClampBackwardRun(const cpu::MapRun& run) {
  const FloatVec low = Splat(run.s), high = Splat(run.t);
  MapTwo(run, [&](FloatVec x, FloatVec dy) HWY_ATTR {
    return hn::IfThenElseZero(hn::And(hn::Ge(x, low), hn::Le(x, high)), dy);
  });
}

// silu(gate) * up.
void SwiGluRun(const float* gate, const float* up, float* out, int64_t n) {
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec g = step.Load(gate + i);
    step.Store(hn::Mul(hn::Mul(g, SigmoidOf(g)), step.Load(up + i)), out + i);
  });
}

// dgate = dy up sigma (1 + gate (1 - sigma)), dup = dy gate sigma.
void SwiGluBackwardRun(const float* gate_up, const float* dy, float* dgate_up, int64_t n) {
  const FloatVec one = Splat(1.0f);
  VectorLoop(n, [&](int64_t i, auto step) HWY_ATTR {
    const FloatVec g = step.Load(gate_up + i), u = step.Load(gate_up + n + i);
    const FloatVec d = step.Load(dy + i), sigma = SigmoidOf(g);
    const FloatVec slope = hn::Mul(sigma, hn::MulAdd(g, hn::Sub(one, sigma), one));
    step.Store(hn::Mul(hn::Mul(d, u), slope), dgate_up + i);
    step.Store(hn::Mul(d, hn::Mul(g, sigma)), dgate_up + n + i);
  });
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(AddRun);
HWY_EXPORT(MultiplyRun);
HWY_EXPORT(AxpyRun);
HWY_EXPORT(ScaleRun);
HWY_EXPORT(SigmoidRun);
HWY_EXPORT(SigmoidBackwardRun);
HWY_EXPORT(ClampRun);
HWY_EXPORT(ClampBackwardRun);
HWY_EXPORT(SwiGluRun);
HWY_EXPORT(SwiGluBackwardRun);

struct Constants {
  double s = 0, t = 0;
};

// Runs a map over all elements; `b` may be undefined.
void Map(void (*kernel)(const cpu::MapRun&), const Tensor& a, const Tensor& b, const Tensor& out,
         Constants constants = {}) {
  const float* a_data = a.data<float>();
  const float* b_data = b.defined() ? b.data<float>() : nullptr;
  float* out_data = out.data<float>();
  cpu::ParallelRuns({a, b, out}, [&](const cpu::RunOffsets& at, int64_t count) {
    cpu::MapRun run;
    run.a = a_data + at.at(0);
    run.b = b_data == nullptr ? nullptr : b_data + at.at(1);
    run.out = out_data + at.at(2);
    run.n = count;
    run.s = static_cast<float>(constants.s);
    run.t = static_cast<float>(constants.t);
    kernel(run);
  });
}

}  // namespace

void CpuBackend::Add(const Tensor& a, const Tensor& b, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(AddRun), a, b, out);
}

void CpuBackend::Multiply(const Tensor& a, const Tensor& b, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(MultiplyRun), a, b, out);
}

void CpuBackend::Axpy(double alpha, const Tensor& x, const Tensor& y) {
  Map(HWY_DYNAMIC_DISPATCH(AxpyRun), x, y, y, {.s = alpha});
}

void CpuBackend::Scale(double alpha, const Tensor& x, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(ScaleRun), x, Tensor(), out, {.s = alpha});
}

void CpuBackend::ScaleByScalar(const Tensor& x, const Tensor& scalar, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(ScaleRun), x, Tensor(), out, {.s = scalar.data<float>()[0]});
}

void CpuBackend::Sigmoid(const Tensor& x, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(SigmoidRun), x, Tensor(), out);
}

void CpuBackend::SigmoidBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  Map(HWY_DYNAMIC_DISPATCH(SigmoidBackwardRun), y, dy, dx);
}

void CpuBackend::Clamp(const Tensor& x, double low, double high, const Tensor& out) {
  Map(HWY_DYNAMIC_DISPATCH(ClampRun), x, Tensor(), out, {.s = low, .t = high});
}

void CpuBackend::ClampBackward(const Tensor& x, double low, double high, const Tensor& dy,
                               const Tensor& dx) {
  Map(HWY_DYNAMIC_DISPATCH(ClampBackwardRun), x, dy, dx, {.s = low, .t = high});
}

void CpuBackend::AddRowVector(const Tensor& x, const Tensor& bias, const Tensor& out) {
  const Tensor bias_f32 = cpu::AsContiguousF32(bias);
  MF_CHECK_EQ(bias.numel(), x.cols());
  const auto kernel = HWY_DYNAMIC_DISPATCH(AddRun);
  const cpu::Rows<float> x_rows(x), out_rows(out);
  const float* bias_data = bias_f32.data<float>();
  cpu::ParallelRows(x.rows(), x.cols(), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      cpu::MapRun run;
      run.a = x_rows[row];
      run.b = bias_data;
      run.out = out_rows[row];
      run.n = x.cols();
      kernel(run);
    }
  });
}

void CpuBackend::SwiGlu(const Tensor& gate_up, const Tensor& out) {
  const int64_t hidden = out.cols();
  MF_CHECK_EQ(gate_up.cols(), 2 * hidden);
  const auto kernel = HWY_DYNAMIC_DISPATCH(SwiGluRun);
  const cpu::Rows<float> gate_up_rows(gate_up), out_rows(out);
  cpu::ParallelRows(out.rows(), 4 * hidden, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = gate_up_rows[row];
      kernel(gate, gate + hidden, out_rows[row], hidden);
    }
  });
}

void CpuBackend::SwiGluBackward(const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) {
  const int64_t hidden = dy.cols();
  MF_CHECK_EQ(gate_up.cols(), 2 * hidden);
  const auto kernel = HWY_DYNAMIC_DISPATCH(SwiGluBackwardRun);
  const cpu::Rows<float> gate_up_rows(gate_up), dy_rows(dy), dgate_up_rows(dgate_up);
  cpu::ParallelRows(dy.rows(), 6 * hidden, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      kernel(gate_up_rows[row], dy_rows[row], dgate_up_rows[row], hidden);
    }
  });
}

}  // namespace meshfold
#endif  // HWY_ONCE
