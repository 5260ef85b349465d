// Normalisation and softmax.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {
namespace {

RmsNormArgs NormArgs(Tensor x, Tensor weight, const RmsNormOptions& options) {
  RmsNormArgs args;
  args.x = std::move(x);
  args.weight = std::move(weight);
  args.eps = options.eps;
  args.groups = options.groups;
  args.zero_centered = options.zero_centered;
  return args;
}

void CheckNorm(const char* op, const Variable& x, const Variable& weight,
               const RmsNormOptions& options) {
  CheckF32(op, "x", x);
  CheckWeightDType(op, "weight", weight);
  int64_t cols = x.shape().cols();
  if (options.groups > 0 && cols % options.groups == 0 &&
      weight.shape() == Shape({cols / options.groups})) {
    return;
  }
  ThrowInvalidArgument(absl::StrCat("[", op, "] weight ", weight.shape().ToString(),
                                    " does not fit ", options.groups, " groups of x ",
                                    x.shape().ToString()));
}

// dx (+ dsum) and dweight of a norm whose input, weight and rstd stand in slots 0, 1 and 2.
void NormBackward(BackwardCall& call, const RmsNormOptions& options, const Tensor& dy,
                  const Tensor& dsum, const Tensor& dx, int weight_input) {
  RmsNormArgs args = NormArgs(call.saved(0), call.saved(1), options);
  LeafGrad::Target dweight{};
  if (call.needs(weight_input)) dweight = call.Target(weight_input, args.weight.shape());
  CurrentBackend().RmsNormBackward(args, call.saved(2), dy, dsum, dx, dweight.tensor,
                                   dweight.accumulate);
}

}  // namespace

Variable RmsNorm(const Variable& x, const Variable& weight, const RmsNormOptions& options) {
  CheckNorm("RmsNorm", x, weight, options);
  Tensor y = Tensor::Empty(x.shape());
  Tensor rstd = Tensor::Contiguous({x.shape().rows(), options.groups});
  CurrentBackend().RmsNorm(NormArgs(x.data(), weight.data(), options), y, rstd, Tensor());
  if (!ShouldRecord({x, weight})) return Variable(y);
  Saved saved;
  saved.Input("x", x);
  saved.Input("weight", weight);
  saved.Activation("rstd", rstd);
  return Record("RmsNorm", {y}, {x, weight}, std::move(saved), [options](BackwardCall& call) {
    Tensor dx = Tensor::Empty(call.grad_out().shape());
    NormBackward(call, options, call.grad_out(), Tensor(), dx, 1);
    if (call.needs(0)) call.Set(0, dx);
  })[0];
}

std::pair<Variable, Variable> AddRmsNorm(const Variable& x, const Variable& residual,
                                         const Variable& weight, const RmsNormOptions& options) {
  CheckF32("AddRmsNorm", "residual", residual);
  CheckSameShape("AddRmsNorm", x, residual);
  CheckNorm("AddRmsNorm", x, weight, options);
  Tensor sum = Tensor::Empty(x.shape()), y = Tensor::Empty(x.shape());
  Tensor rstd = Tensor::Contiguous({x.shape().rows(), options.groups});
  RmsNormArgs args = NormArgs(x.data(), weight.data(), options);
  args.residual = residual.data();
  CurrentBackend().RmsNorm(args, y, rstd, sum);
  if (!ShouldRecord({x, residual, weight})) return {Variable(sum), Variable(y)};
  Saved saved;
  saved.Activation("sum", sum);
  saved.Input("weight", weight);
  saved.Activation("rstd", rstd);
  auto backward = [options](BackwardCall& call) {
    const Tensor& dsum = call.grad_out(0);
    const Tensor& dy = call.grad_out(1);
    Tensor dx = dsum;
    if (dy.defined()) {
      dx = Tensor::Empty(dy.shape());
      NormBackward(call, options, dy, dsum, dx, 2);
    }
    for (int i = 0; i < 2; ++i) {
      if (call.needs(i)) call.Set(i, dx);
    }
  };
  std::vector<Variable> outs =
      Record("AddRmsNorm", {sum, y}, {x, residual, weight}, std::move(saved), backward);
  return {outs[0], outs[1]};
}

Variable Softmax(const Variable& x) {
  CheckF32("Softmax", "x", x);
  Tensor y = Tensor::Empty(x.shape());
  CurrentBackend().Softmax(x.data(), y);
  if (!ShouldRecord({x})) return Variable(y);
  Saved saved;
  saved.Activation("y", y);
  return Record("Softmax", {y}, {x}, std::move(saved), [](BackwardCall& call) {
    Tensor dx = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().SoftmaxBackward(call.saved(0), call.grad_out(), dx);
    call.Set(0, dx);
  })[0];
}

}  // namespace meshfold
