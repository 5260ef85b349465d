#include "parallel/vocabulary_head.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/autograd/ops.h"
#include "core/backend/backend.h"
#include "core/backend/completion.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

// One row's statistics of every rank -> those of the whole vocabulary. A rank without classes has
// the maximum -infinity.
void CombineRow(const Tensor& ranks_PR3, int64_t row, double* out) {
  double highest = -std::numeric_limits<double>::infinity(), total = 0, target_logit = 0;
  for (int64_t rank = 0; rank < ranks_PR3.dim(0); ++rank) {
    highest = std::max(highest, ranks_PR3.Select(rank).row<double>(row)[0]);
  }
  for (int64_t rank = 0; rank < ranks_PR3.dim(0); ++rank) {
    const double* part = ranks_PR3.Select(rank).row<double>(row);
    // Both are -infinity where the row does not count.
    if (part[1] != 0) total += part[1] * std::exp(part[0] - highest);
    target_logit += part[2];
  }
  out[0] = highest, out[1] = total, out[2] = target_logit;
}

class VocabularyHead : public LossHead {
 public:
  VocabularyHead(const VocabularyHeadOptions& options, Group group)
      : options_(options),
        group_(std::move(group)),
        own_(PartOf(options.vocab_size, group_->size(), group_->rank())) {}

  Variable Compute(const Variable& x, const Variable& weight, StepContext& context) override {
    const PackedBatch& batch = context.batch();
    const Variable all =
        options_.sequence ? GatherRows(x, batch.num_tokens(), group_) : CopyToGroup(x, group_);
    if (!batch.targets.defined()) {
      context.logits = WholeLogits(Linear(all, weight).data());
      return Variable();
    }
    Tensor own_logits;
    Variable loss =
        LinearCrossEntropy(all, weight, batch.targets,
                           {.scale = context.options().loss_scale,
                            .logits = context.options().want_logits ? &own_logits : nullptr,
                            .part = {.first = own_.begin, .size = options_.vocab_size},
                            .combine = [this](const Tensor& statistics) { Combine(statistics); }});
    if (own_logits.defined()) context.logits = WholeLogits(own_logits);
    return loss;
  }

 private:
  void Combine(const Tensor& statistics_R3) const {
    const int64_t rows = statistics_R3.dim(0);
    const Tensor all = Tensor::Contiguous({group_->size(), rows, 3}, DType::kF64);
    Await(*ValueOrThrow(group_->AllGather(statistics_R3, all)));
    for (int64_t r = 0; r < rows; ++r) CombineRow(all, r, statistics_R3.row<double>(r));
  }

  // Only the last ranks have fewer classes, so what they are padded with comes behind all classes.
  Tensor WholeLogits(const Tensor& own_logits) const {
    const int64_t each = PartOf(options_.vocab_size, group_->size(), 0).count;
    const Tensor padded = Tensor::Contiguous({own_logits.rows(), each});
    CurrentBackend().Fill(0.0, padded);
    CurrentBackend().Copy(own_logits, padded.NarrowCols(0, own_.count));
    return GatherColumns(Variable(padded), group_).data().NarrowCols(0, options_.vocab_size);
  }

  const VocabularyHeadOptions options_;
  const Group group_;
  const Interval own_;
};

}  // namespace

std::unique_ptr<LossHead> MakeVocabularyHead(const VocabularyHeadOptions& options, Group group) {
  return std::make_unique<VocabularyHead>(options, std::move(group));
}

}  // namespace meshfold::parallel
