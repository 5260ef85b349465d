// Elementwise ops.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {

Variable Add(const Variable& a, const Variable& b) {
  CheckF32("Add", "a", a);
  CheckF32("Add", "b", b);
  CheckSameShape("Add", a, b);
  Tensor out = Tensor::Empty(a.shape());
  CurrentBackend().Add(a.data(), b.data(), out);
  if (!ShouldRecord({a, b})) return Variable(out);
  return Record("Add", {out}, {a, b}, Saved(), [](BackwardCall& call) {
    for (int i = 0; i < 2; ++i) {
      if (call.needs(i)) call.Set(i, call.grad_out());
    }
  })[0];
}

Variable Multiply(const Variable& a, const Variable& b) {
  CheckF32("Multiply", "a", a);
  CheckF32("Multiply", "b", b);
  CheckSameShape("Multiply", a, b);
  Tensor out = Tensor::Empty(a.shape());
  CurrentBackend().Multiply(a.data(), b.data(), out);
  if (!ShouldRecord({a, b})) return Variable(out);
  Saved saved;
  saved.Input("a", b.requires_grad() ? a : Variable());
  saved.Input("b", a.requires_grad() ? b : Variable());
  return Record("Multiply", {out}, {a, b}, std::move(saved), [](BackwardCall& call) {
    for (int i = 0; i < 2; ++i) {
      if (!call.needs(i)) continue;
      Tensor grad = Tensor::Empty(call.grad_out().shape());
      CurrentBackend().Multiply(call.grad_out(), call.saved(1 - i), grad);
      call.Set(i, grad);
    }
  })[0];
}

Variable Scale(const Variable& x, double alpha) {
  CheckF32("Scale", "x", x);
  Tensor out = Tensor::Empty(x.shape());
  CurrentBackend().Scale(alpha, x.data(), out);
  if (!ShouldRecord({x})) return Variable(out);
  return Record("Scale", {out}, {x}, Saved(), [alpha](BackwardCall& call) {
    Tensor grad = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().Scale(alpha, call.grad_out(), grad);
    call.Set(0, grad);
  })[0];
}

Variable Sigmoid(const Variable& x) {
  CheckF32("Sigmoid", "x", x);
  Tensor out = Tensor::Empty(x.shape());
  CurrentBackend().Sigmoid(x.data(), out);
  if (!ShouldRecord({x})) return Variable(out);
  Saved saved;
  saved.Activation("y", out);
  return Record("Sigmoid", {out}, {x}, std::move(saved), [](BackwardCall& call) {
    Tensor grad = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().SigmoidBackward(call.saved(0), call.grad_out(), grad);
    call.Set(0, grad);
  })[0];
}

Variable Clamp(const Variable& x, double low, double high) {
  CheckF32("Clamp", "x", x);
  if (!(low <= high)) {
    ThrowInvalidArgument(absl::StrCat("[Clamp] bounds [", low, ", ", high, "] are empty"));
  }
  Tensor out = Tensor::Empty(x.shape());
  CurrentBackend().Clamp(x.data(), low, high, out);
  if (!ShouldRecord({x})) return Variable(out);
  Saved saved;
  saved.Input("x", x);
  return Record("Clamp", {out}, {x}, std::move(saved), [low, high](BackwardCall& call) {
    Tensor grad = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().ClampBackward(call.saved(0), low, high, call.grad_out(), grad);
    call.Set(0, grad);
  })[0];
}

Variable AddBias(const Variable& x, const Variable& bias) {
  CheckF32("AddBias", "x", x);
  CheckWeightDType("AddBias", "bias", bias);
  if (bias.shape().numel() != x.shape().cols()) {
    CheckShape("AddBias", "bias", bias, {x.shape().cols()});
  }
  Tensor out = Tensor::Empty(x.shape());
  CurrentBackend().AddRowVector(x.data(), bias.data(), out);
  if (!ShouldRecord({x, bias})) return Variable(out);
  Shape bias_shape = bias.shape();
  return Record("AddBias", {out}, {x, bias}, Saved(), [bias_shape](BackwardCall& call) {
    if (call.needs(0)) call.Set(0, call.grad_out());
    if (!call.needs(1)) return;
    LeafGrad::Target target = call.Target(1, bias_shape);
    if (bias_shape.rank() == 1) {
      CurrentBackend().ColumnSum(call.grad_out(), target.accumulate, target.tensor);
      return;
    }
    const Tensor sum = Tensor::Contiguous(bias_shape);
    CurrentBackend().ColumnSum(call.grad_out(), false, sum.Reshape({bias_shape.numel()}));
    if (target.accumulate) CurrentBackend().Add(target.tensor, sum, sum);
    CurrentBackend().Copy(sum, target.tensor);
  })[0];
}

Variable SwiGlu(const Variable& gate_up) {
  CheckF32("SwiGlu", "gate_up", gate_up);
  int64_t cols = gate_up.shape().cols();
  if (cols % 2 != 0) {
    ThrowInvalidArgument(absl::StrCat("[SwiGlu] ", cols, " columns are not gate and up halves"));
  }
  Tensor y = Tensor::Empty({gate_up.shape().rows(), cols / 2});
  CurrentBackend().SwiGlu(gate_up.data(), y);
  if (!ShouldRecord({gate_up})) return Variable(y);
  Saved saved;
  saved.Input("gate_up", gate_up);
  return Record("SwiGlu", {y}, {gate_up}, std::move(saved), [](BackwardCall& call) {
    Tensor gate_up_saved = call.saved(0);
    Tensor dx = Tensor::Empty(gate_up_saved.shape());
    CurrentBackend().SwiGluBackward(gate_up_saved, call.grad_out(), dx);
    call.Set(0, dx);
  })[0];
}

}  // namespace meshfold
