// Linear layers and the loss head.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {

Variable Linear(const Variable& x, const Variable& weight) {
  CheckF32("Linear", "x", x);
  CheckWeightDType("Linear", "weight", weight);
  if (x.shape().cols() != weight.shape().cols()) {
    ThrowInvalidArgument(absl::StrCat("[Linear] x ", x.shape().ToString(), " and weight ",
                                      weight.shape().ToString(), " differ in the last dim"));
  }
  Tensor out = Tensor::Empty({x.shape().rows(), weight.shape().rows()});
  CurrentBackend().Gemm(
      {.a = x.data().AsMatrix(), .b = weight.data().AsMatrix(), .out = out, .transpose_b = true});
  if (!ShouldRecord({x, weight})) return Variable(out);
  Saved saved;
  int x_slot = saved.Input("x", weight.requires_grad() ? x : Variable());
  int w_slot = saved.Input("weight", x.requires_grad() ? weight : Variable());
  Shape x_shape = x.shape(), w_shape = weight.shape();
  auto backward = [=](BackwardCall& call) {
    if (call.needs(0)) {
      LeafGrad::Target target = call.Target(0, x_shape);
      CurrentBackend().Gemm({.a = call.grad_out(),
                             .b = call.saved(w_slot).AsMatrix(),
                             .out = target.tensor.AsMatrix(),
                             .accumulate = target.accumulate});
    }
    if (call.needs(1)) {
      LeafGrad::Target target = call.Target(1, w_shape);
      CurrentBackend().Gemm({.a = call.grad_out(),
                             .b = call.saved(x_slot).AsMatrix(),
                             .out = target.tensor.AsMatrix(),
                             .transpose_a = true,
                             .accumulate = target.accumulate});
    }
  };
  return Record("Linear", {out}, {x, weight}, std::move(saved), backward, {.deferrable = {1}})[0];
}

namespace {

void CheckLinearCrossEntropy(const Variable& x, const Variable& weight, const Tensor& targets,
                             const VocabularyPart& part) {
  CheckF32("LinearCrossEntropy", "x", x);
  CheckWeightDType("LinearCrossEntropy", "weight", weight);
  if (x.shape().cols() != weight.shape().cols() || targets.numel() != x.shape().rows()) {
    ThrowInvalidArgument(absl::StrCat("[LinearCrossEntropy] x ", x.shape().ToString(), ", weight ",
                                      weight.shape().ToString(), ", targets ",
                                      targets.shape().ToString()));
  }
  CheckIds("LinearCrossEntropy", "target", targets,
           part.size == 0 ? weight.shape().rows() : part.size, /*negative_ok=*/true);
}

// Slots 0 and 1 hold the gradients of the loss; the loss's own gradient is one number, 1 in
// training. They are read once, so they are scaled where they lie unless a leaf wants them.
void LinearCrossEntropyBackward(BackwardCall& call) {
  for (int i = 0; i < 2; ++i) {
    if (!call.needs(i)) continue;
    Tensor grad = call.saved(i);
    if (call.writes_leaf(i)) {
      LeafGrad::Target target = call.Target(i, grad.shape());
      Tensor scaled = target.accumulate ? grad : target.tensor;
      CurrentBackend().ScaleByScalar(grad, call.grad_out(), scaled);
      if (target.accumulate) CurrentBackend().Add(target.tensor, grad, target.tensor);
    } else {
      CurrentBackend().ScaleByScalar(grad, call.grad_out(), grad);
      call.Set(i, grad);
    }
  }
}

}  // namespace

Variable LinearCrossEntropy(const Variable& x, const Variable& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options) {
  CheckLinearCrossEntropy(x, weight, targets, options.part);
  bool record = ShouldRecord({x, weight});
  LinearCrossEntropyArgs args;
  args.x = x.data();
  args.weight = weight.data();
  args.targets = targets;
  args.first_id = options.part.first;
  args.vocab_size = options.part.size;
  args.combine = options.combine;
  args.scale = options.scale;
  args.loss = Tensor::Empty({1});
  if (record && x.requires_grad()) args.dx = Tensor::Empty(x.shape());
  if (record && weight.requires_grad()) args.dweight = Tensor::Empty(weight.shape());
  if (options.logits != nullptr) {
    *options.logits = Tensor::Empty({x.shape().rows(), weight.shape().rows()});
    args.logits = *options.logits;
  }
  CurrentBackend().LinearCrossEntropy(args);
  if (!record) return Variable(args.loss);
  Saved saved;
  saved.Activation("dx", args.dx);
  saved.Activation("dweight", args.dweight);
  return Record("LinearCrossEntropy", {args.loss}, {x, weight}, std::move(saved),
                LinearCrossEntropyBackward, {.deferrable = {1}})[0];
}

}  // namespace meshfold
