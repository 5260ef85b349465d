// Ops that move rows and elements by index: embedding, dispatch to experts and back, and the small
// sums of routing.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {
namespace {

// Both index tables as saved state, in slots 0 and 1.
Saved SaveIndex(const RowIndex& index) {
  Saved saved;
  saved.State("row_to_slot", index.row_to_slot);
  saved.State("token_rows", index.token_rows);
  return saved;
}

// `rows` are the op's, `wanted` the index's; entries lie inside what they point to.
void CheckRows(const char* op, const RowIndex& index, int64_t rows, int64_t wanted) {
  if (rows != wanted) {
    ThrowInvalidArgument(absl::StrCat("[", op, "] ", rows, " rows, the index has ", wanted));
  }
  CheckIds(op, "slot", index.row_to_slot, index.token_rows.numel(), /*negative_ok=*/true);
  CheckIds(op, "row", index.token_rows, index.row_to_slot.numel(), /*negative_ok=*/true);
}

// ids counted from `first`, -1 for those that are not in [first, first + count). Host tensors.
Tensor IdsInPart(const Tensor& ids, int64_t first, int64_t count) {
  const Tensor local = Tensor::Contiguous(ids.shape(), DType::kI32);
  const absl::Span<const int32_t> from = ids.span<int32_t>();
  const absl::Span<int32_t> to = local.span<int32_t>();
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t id = from[i] - first;
    to[i] = id >= 0 && id < count ? static_cast<int32_t>(id) : -1;
  }
  return local;
}

}  // namespace

Variable Embedding(const Variable& table, const Tensor& ids, const VocabularyPart& part) {
  CheckWeightDType("Embedding", "table", table);
  const int64_t rows = table.shape().rows();
  CheckIds("Embedding", "token id", ids, part.size == 0 ? rows : part.size, /*negative_ok=*/false);
  const Tensor local_ids = part.size == 0 ? ids : IdsInPart(ids, part.first, rows);
  Tensor out = Tensor::Empty({ids.numel(), table.shape().cols()});
  CurrentBackend().Embedding(table.data(), local_ids, out);
  if (!ShouldRecord({table})) return Variable(out);
  Saved saved;
  saved.State("ids", local_ids);
  Shape shape = table.shape();
  return Record("Embedding", {out}, {table}, std::move(saved), [shape](BackwardCall& call) {
    LeafGrad::Target target = call.Target(0, shape);
    CurrentBackend().EmbeddingBackward(call.saved(0), call.grad_out(), target.accumulate,
                                       target.tensor);
  })[0];
}

Variable GatherTokenRows(const Variable& x, const RowIndex& index) {
  CheckF32("GatherTokenRows", "x", x);
  CheckRows("GatherTokenRows", index, x.shape().rows(), index.token_rows.rows());
  int64_t k = index.token_rows.cols();
  Tensor out = Tensor::Empty({index.row_to_slot.numel(), x.shape().cols()});
  CurrentBackend().GatherRows(x.data(), index.row_to_slot, k, out);
  if (!ShouldRecord({x})) return Variable(out);
  Shape shape = x.shape();
  return Record("GatherTokenRows", {out}, {x}, SaveIndex(index), [shape](BackwardCall& call) {
    Tensor dx = Tensor::Empty(shape);
    CurrentBackend().CombineRows(call.grad_out(), call.saved(1), dx);
    call.Set(0, dx);
  })[0];
}

Variable CombineTokenRows(const Variable& y, const RowIndex& index) {
  CheckF32("CombineTokenRows", "y", y);
  CheckRows("CombineTokenRows", index, y.shape().rows(), index.row_to_slot.numel());
  Tensor out = Tensor::Empty({index.token_rows.rows(), y.shape().cols()});
  CurrentBackend().CombineRows(y.data(), index.token_rows, out);
  if (!ShouldRecord({y})) return Variable(out);
  Shape shape = y.shape();
  int64_t k = index.token_rows.cols();
  return Record("CombineTokenRows", {out}, {y}, SaveIndex(index), [=](BackwardCall& call) {
    Tensor dy = Tensor::Empty(shape);
    CurrentBackend().GatherRows(call.grad_out(), call.saved(0), k, dy);
    call.Set(0, dy);
  })[0];
}

Variable GatherRowWeights(const Variable& weights, const RowIndex& index) {
  CheckF32("GatherRowWeights", "weights", weights);
  CheckShape("GatherRowWeights", "weights", weights, index.token_rows.shape());
  CheckRows("GatherRowWeights", index, weights.shape().rows(), index.token_rows.rows());
  Tensor out = Tensor::Empty({index.row_to_slot.numel()});
  CurrentBackend().GatherElements(weights.data(), index.row_to_slot, out);
  if (!ShouldRecord({weights})) return Variable(out);
  Shape shape = weights.shape();
  auto backward = [shape](BackwardCall& call) {
    Tensor dweights = Tensor::Empty(shape);
    CurrentBackend().ScatterElements(call.grad_out(), call.saved(0), dweights);
    call.Set(0, dweights);
  };
  return Record("GatherRowWeights", {out}, {weights}, SaveIndex(index), backward)[0];
}

Variable GatherCols(const Variable& scores, const Tensor& ids) {
  CheckF32("GatherCols", "scores", scores);
  if (scores.shape().rows() != ids.rows()) {
    ThrowInvalidArgument(absl::StrCat("[GatherCols] scores ", scores.shape().ToString(),
                                      " and ids ", ids.shape().ToString(), " differ in rows"));
  }
  CheckIds("GatherCols", "column", ids, scores.shape().cols(), /*negative_ok=*/false);
  Tensor out = Tensor::Empty(ids.shape());
  CurrentBackend().GatherCols(scores.data(), ids, out);
  if (!ShouldRecord({scores})) return Variable(out);
  Saved saved;
  saved.State("ids", ids);
  Shape shape = scores.shape();
  return Record("GatherCols", {out}, {scores}, std::move(saved), [shape](BackwardCall& call) {
    Tensor dscores = Tensor::Empty(shape);
    CurrentBackend().GatherColsBackward(call.saved(0), call.grad_out(), dscores);
    call.Set(0, dscores);
  })[0];
}

Variable NormalizeRows(const Variable& w, double eps, double scale) {
  CheckF32("NormalizeRows", "w", w);
  Tensor out = Tensor::Empty(w.shape());
  CurrentBackend().NormalizeRows(w.data(), eps, scale, out);
  if (!ShouldRecord({w})) return Variable(out);
  Saved saved;
  saved.Input("w", w);
  return Record("NormalizeRows", {out}, {w}, std::move(saved), [eps, scale](BackwardCall& call) {
    Tensor dw = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().NormalizeRowsBackward(call.saved(0), eps, scale, call.grad_out(), dw);
    call.Set(0, dw);
  })[0];
}

Variable WeightedSum(const Variable& x, const Tensor& coefficients, const Tensor& valid) {
  CheckF32("WeightedSum", "x", x);
  if (coefficients.dtype() != DType::kF32 || coefficients.numel() != x.shape().cols()) {
    ThrowInvalidArgument(absl::StrCat("[WeightedSum] coefficients ", coefficients.ToString(),
                                      " for x ", x.shape().ToString()));
  }
  CheckValid("WeightedSum", valid, x.shape().rows());
  Tensor out = Tensor::Empty({1});
  CurrentBackend().WeightedSum(x.data(), coefficients, valid, out);
  if (!ShouldRecord({x})) return Variable(out);
  Saved saved;
  saved.State("coefficients", coefficients);
  saved.State("valid", valid);
  Shape shape = x.shape();
  return Record("WeightedSum", {out}, {x}, std::move(saved), [shape](BackwardCall& call) {
    Tensor dx = Tensor::Empty(shape);
    CurrentBackend().WeightedSumBackward(call.saved(0), call.saved(1), call.grad_out(), dx);
    call.Set(0, dx);
  })[0];
}

Variable SquaredLogSumExp(const Variable& z, double scale, const Tensor& valid) {
  CheckF32("SquaredLogSumExp", "z", z);
  CheckValid("SquaredLogSumExp", valid, z.shape().rows());
  Tensor out = Tensor::Empty({1});
  CurrentBackend().SquaredLogSumExp(z.data(), scale, valid, out);
  if (!ShouldRecord({z})) return Variable(out);
  Saved saved;
  saved.Input("z", z);
  saved.State("valid", valid);
  return Record("SquaredLogSumExp", {out}, {z}, std::move(saved), [scale](BackwardCall& call) {
    Tensor z_saved = call.saved(0);
    Tensor dz = Tensor::Empty(z_saved.shape());
    CurrentBackend().SquaredLogSumExpBackward(z_saved, scale, call.saved(1), call.grad_out(), dz);
    call.Set(0, dz);
  })[0];
}

Variable AttachLoss(const Variable& x, const Variable& loss) {
  CheckF32("AttachLoss", "loss", loss);
  CheckShape("AttachLoss", "loss", loss, {1});
  if (!ShouldRecord({loss})) return x;
  return Record("AttachLoss", {x.data()}, {x, loss}, Saved(), [](BackwardCall& call) {
    if (call.needs(0)) call.Set(0, call.grad_out());
    if (!call.needs(1)) return;
    Tensor one = Tensor::Empty({1});
    CurrentBackend().Fill(1.0, one);
    call.Set(1, one);
  })[0];
}

}  // namespace meshfold
