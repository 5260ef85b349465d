#include "parallel/grad_norm.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "parallel/rank_sum.h"
#include "parallel/save_plan.h"

namespace meshfold::parallel {
namespace {

int64_t NumBlocks(const Tensor& tensor) {
  return (tensor.numel() + kSquareSumBlock - 1) / kSquareSumBlock;
}

double SquareSum(absl::Span<Parameter* const> parameters) {
  std::vector<Tensor> grads;
  int64_t num_blocks = 0;
  for (const Parameter* parameter : parameters) {
    if (!parameter->trained || !parameter->value.requires_grad()) continue;
    const LeafGrad& grad = parameter->value.grad();
    MF_CHECK_GT(grad.contributions(), 0) << " '" << parameter->name << "' has no gradient";
    grads.push_back(grad.tensor());
    num_blocks += NumBlocks(grads.back());
  }
  if (num_blocks == 0) return 0.0;
  // The blocks of all gradients lie in one tensor: one copy to the host.
  Tensor blocks = Tensor::Contiguous({num_blocks}, DType::kF64);
  int64_t at = 0;
  for (const Tensor& grad : grads) {
    CurrentBackend().BlockSquareSums(grad, blocks.Narrow(at, NumBlocks(grad)));
    at += NumBlocks(grad);
  }
  std::vector<double> sums(static_cast<size_t>(num_blocks));
  AwaitOnHost(*CurrentBackend().CopyToHost(blocks, sums.data()));
  double total = 0.0;
  for (double sum : sums) total += sum;
  return total;
}

}  // namespace

double GradNorm(absl::Span<Parameter* const> parameters) {
  return std::sqrt(SquareSum(parameters));
}

absl::StatusOr<std::vector<Parameter*>> PartsForNorm(absl::Span<Parameter* const> parameters,
                                                     const RankLayout& ranks, int64_t rank) {
  std::vector<Parameter*> trained;
  std::vector<SavedTensor> tensors;
  for (Parameter* parameter : parameters) {
    if (!parameter->trained) continue;
    trained.push_back(parameter);
    tensors.push_back({parameter->shape, parameter->layout});
  }
  // One copy of each, evenly: as for a checkpoint.
  MF_ASSIGN_OR_RETURN(const std::vector<bool> is_own, PlanSave(tensors, ranks, rank));
  std::vector<Parameter*> own;
  for (size_t i = 0; i < trained.size(); ++i) {
    if (is_own[i]) own.push_back(trained[i]);
  }
  return own;
}

double GradNorm(absl::Span<Parameter* const> own_parts, comm::Communicator& world) {
  return std::sqrt(ValueOrThrow(SumOverRanks(world, {SquareSum(own_parts)}))[0]);
}

Tensor ClipScale(double norm, double max_norm) {
  const double scale = max_norm > 0.0 ? max_norm / (norm + 1e-6) : 1.0;
  Tensor out = Tensor::Empty({1});
  CurrentBackend().Fill(scale > 1.0 ? 1.0 : scale, out);  // keeps NaN, unlike std::min
  return out;
}

}  // namespace meshfold::parallel
