#include "core/nn/step_context.h"

#include <algorithm>
#include <utility>

#include "core/autograd/ops.h"
#include "core/base/check.h"

namespace meshfold {

PackedBatch MakePackedBatch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                            const std::vector<int32_t>& cu_seqlens, int64_t num_padding) {
  std::vector<uint8_t> is_padding;
  if (num_padding > 0) {
    is_padding.assign(tokens.size(), 0);
    std::fill(is_padding.end() - num_padding, is_padding.end(), uint8_t{1});
  }
  return MakePackedBatch(tokens, targets, cu_seqlens, is_padding);
}

PackedBatch MakePackedBatch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                            const std::vector<int32_t>& cu_seqlens,
                            absl::Span<const uint8_t> is_padding) {
  int64_t num_tokens = static_cast<int64_t>(tokens.size());
  MF_CHECK(!cu_seqlens.empty() && cu_seqlens.back() == num_tokens)
      << " cu_seqlens end at " << (cu_seqlens.empty() ? -1 : cu_seqlens.back()) << " of "
      << num_tokens << " tokens";
  std::vector<int32_t> positions(tokens.size());
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    for (int32_t t = cu_seqlens[n]; t < cu_seqlens[n + 1]; ++t) {
      positions[static_cast<size_t>(t)] = t - cu_seqlens[n];
    }
  }
  PackedBatch batch;
  batch.tokens = TensorFromVector(tokens, {num_tokens});
  if (!targets.empty()) batch.targets = TensorFromVector(targets, {num_tokens});
  batch.positions = TensorFromVector(positions, {num_tokens});
  batch.cu_seqlens = cu_seqlens;
  batch.num_padding = std::count(is_padding.begin(), is_padding.end(), 1);
  if (batch.num_padding > 0) {
    std::vector<uint8_t> valid;
    for (uint8_t padding : is_padding) valid.push_back(padding == 0 ? 1 : 0);
    batch.valid = TensorFromVector(valid, {num_tokens});
  }
  return batch;
}

Variable StepContext::AttachLoss(const Variable& x, const std::string& name, const Variable& loss) {
  if (!recomputing_) attached_losses_.push_back({name, loss.data()});
  return meshfold::AttachLoss(x, loss);
}

void StepContext::AddExpertCounts(ExpertCounts counts) {
  if (!recomputing_) expert_counts_.push_back(std::move(counts));
}

}  // namespace meshfold
