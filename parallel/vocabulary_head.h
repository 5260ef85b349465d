// The loss head of a vocabulary that is cut over ranks.
#pragma once

#include <cstdint>
#include <memory>

#include "core/nn/layers.h"
#include "parallel/collective_ops.h"

namespace meshfold::parallel {

struct VocabularyHeadOptions {
  int64_t vocab_size = 0;  // of all ranks; this one has PartOf(vocab_size, size, rank)
  bool sequence = false;   // x is this rank's rows of the micro-batch, else all of them
};

// Cross-entropy where each rank has the logits of a part of the vocabulary. A chunk of rows costs
// one all-gather of 24 bytes a row and rank: maximum, sum of exponentials and target logit, from
// which every rank has the whole softmax's (Shoeybi et al. 2019, section 3). The loss is the same
// on every rank. Logits, where wanted, are gathered whole. Collective over `group`.
std::unique_ptr<LossHead> MakeVocabularyHead(const VocabularyHeadOptions& options, Group group);

}  // namespace meshfold::parallel
