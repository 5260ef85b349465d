// Tensor parallelism with or without sequence parallelism: heads, hidden columns and the vocabulary
// are cut over the innermost axis "tp". Shoeybi et al. 2019; Korthikanti et al. 2022.
//
// With sequence parallelism the activations between layers are this rank's rows of the micro-batch
// (ceil(T / tp) each, the last ranks' fewer), without it all rows on every rank. Layers that hold
// all of their weights (norms) then see a part of the tokens, and their gradients are summands.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/nn/attention.h"
#include "core/nn/layers.h"
#include "core/nn/mlp.h"
#include "parallel/axis.h"
#include "parallel/collective_ops.h"
#include "parallel/sharding.h"
#include "parallel/vocabulary_head.h"

namespace meshfold::parallel {
namespace {

constexpr char kAxis[] = "tp";

Placement Partial(int64_t parts = 1) {
  return {.axis = kAxis, .kind = Placement::Kind::kPartial, .parts = parts};
}

// Cuts dim `dim` into `parts`. Fewer parts than ranks: neighbours hold the same and have summands
// of its gradient.
void Cut(Parameter& parameter, int dim, int64_t ranks, int64_t parts) {
  parameter.layout.placements.push_back({.axis = kAxis, .dim = dim, .parts = parts});
  if (parts < ranks) parameter.grad_layout.placements.push_back(Partial(parts));
}

class TensorAxis {
 public:
  TensorAxis(const AxisInput& input)
      : input_(input),
        group_(input.meshes.dense.group(kAxis).communicator),
        ranks_(group_->size()) {}

  absl::Status Apply() {
    if (ranks_ == 1) return absl::OkStatus();
    absl::Status status;
    input_.layers.VisitModules([&](Module& module) {
      if (status.ok()) status = ApplyTo(module);
    });
    return status;
  }

 private:
  absl::Status ApplyTo(Module& module) {
    if (auto* attention = dynamic_cast<SelfAttention*>(&module)) return CutAttention(*attention);
    if (auto* mlp = dynamic_cast<SwiGluMlp*>(&module)) return CutMlp(*mlp);
    if (auto* head = dynamic_cast<OutputLayer*>(&module)) return CutHead(*head);
    if (auto* embedding = dynamic_cast<EmbeddingLayer*>(&module)) return CutEmbedding(*embedding);
    auto* norm = dynamic_cast<RmsNormLayer*>(&module);
    // Norms inside attention see all tokens; CutAttention has dealt with them.
    if (norm != nullptr && inner_norms_.count(norm) == 0 && input_.options.sequence) {
      norm->weight().grad_layout.placements.push_back(Partial());
    }
    return absl::OkStatus();
  }

  // All rows in, a summand of all rows out.
  void SetBoundaries(Module& module) {
    const Group group = group_;
    const bool sequence = input_.options.sequence;
    module.set_pre_boundary([group, sequence](const Variable& x, StepContext& context) {
      return sequence ? GatherRows(x, context.batch().num_tokens(), group) : CopyToGroup(x, group);
    });
    SetSumBoundary(module);
  }
  void SetSumBoundary(Module& module) {
    const Group group = group_;
    const bool sequence = input_.options.sequence;
    module.set_post_boundary([group, sequence](const Variable& y, StepContext&) {
      return sequence ? ReduceScatterRows(y, group) : SumOverGroup(y, group);
    });
  }

  // The first rank adds it to its summand; the others' gradients of it are zero.
  bool AddBiasOnce(Parameter* bias) {
    if (bias != nullptr) bias->grad_layout.placements.push_back(Partial());
    return group_->rank() == 0;
  }

  void CutRows(LinearLayer& linear, int64_t parts) {
    Cut(linear.weight(), 0, ranks_, parts);
    if (linear.bias() != nullptr) Cut(*linear.bias(), 0, ranks_, parts);
  }

  absl::Status CutAttention(SelfAttention& attention) {
    const AttentionOptions& heads = attention.options().attention;
    const int64_t num_heads = heads.num_heads, num_kv_heads = heads.num_kv_heads;
    if (num_heads % ranks_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat("parallel.tensor ", ranks_,
                                                     " does not divide the model's ", num_heads,
                                                     " attention heads"));
    }
    if (num_kv_heads % ranks_ != 0 && ranks_ % num_kv_heads != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parallel.tensor ", ranks_, " and the model's ", num_kv_heads,
                       " key/value heads: one must divide the other"));
    }
    const int64_t kv_parts = std::min(ranks_, num_kv_heads);
    MF_RETURN_IF_ERROR(CutQkNorms(attention, kv_parts));
    CutRows(attention.q(), ranks_);
    CutRows(attention.k(), kv_parts);
    CutRows(attention.v(), kv_parts);
    Cut(attention.o().weight(), 1, ranks_, ranks_);
    attention.o().set_adds_bias(AddBiasOnce(attention.o().bias()));
    attention.SetLocalHeads(num_heads / ranks_, num_kv_heads / kv_parts);
    SetBoundaries(attention);
    return absl::OkStatus();
  }

  absl::Status CutQkNorms(SelfAttention& attention, int64_t kv_parts) {
    const QkNormKind kind = attention.options().qk_norm;
    if (kind == QkNormKind::kNone) return absl::OkStatus();
    if (kind == QkNormKind::kPerProjection && kv_parts < ranks_) {
      return absl::InvalidArgumentError(
          absl::StrCat("parallel.tensor ", ranks_, " is above the model's ", kv_parts,
                       " key/value heads, whose norm goes over the whole projection"));
    }
    for (RmsNormLayer* norm : {attention.q_norm(), attention.k_norm()}) {
      inner_norms_.insert(norm);
      norm->weight().grad_layout.placements.push_back(Partial());
      if (kind == QkNormKind::kPerProjection) NormWholeProjection(*norm);
    }
    return absl::OkStatus();
  }

  // The norm needs every head's columns of a row.
  void NormWholeProjection(RmsNormLayer& norm) {
    const Group group = group_;
    const int64_t own = norm.weight().shape.numel() / ranks_;
    norm.set_pre_boundary(
        [group](const Variable& x, StepContext&) { return GatherColumns(x, group); });
    norm.set_post_boundary([group, own](const Variable& y, StepContext&) {
      return SliceColumns(y, group->rank() * own, own);
    });
  }

  absl::Status CutMlp(SwiGluMlp& mlp) {
    if (mlp.options().intermediate_size < ranks_) {
      return absl::InvalidArgumentError(absl::StrCat("parallel.tensor ", ranks_, " is above the ",
                                                     mlp.options().intermediate_size,
                                                     " hidden columns of an MLP"));
    }
    Cut(mlp.gate_up(), 1, ranks_, ranks_);
    Cut(mlp.down(), 1, ranks_, ranks_);
    if (mlp.gate_up_bias() != nullptr) Cut(*mlp.gate_up_bias(), 1, ranks_, ranks_);
    mlp.set_adds_down_bias(AddBiasOnce(mlp.down_bias()));
    SetBoundaries(mlp);
    return absl::OkStatus();
  }

  absl::Status CheckVocabulary(int64_t size) const {
    if (size >= ranks_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.tensor ", ranks_, " is above the vocabulary of ", size));
  }

  absl::Status CutEmbedding(EmbeddingLayer& embedding) {
    MF_RETURN_IF_ERROR(CheckVocabulary(embedding.weight().shape[0]));
    Cut(embedding.weight(), 0, ranks_, ranks_);
    SetSumBoundary(embedding);
    return absl::OkStatus();
  }

  absl::Status CutHead(OutputLayer& head) {
    const int64_t vocab_size = head.weight().shape[0];
    MF_RETURN_IF_ERROR(CheckVocabulary(vocab_size));
    Cut(head.weight(), 0, ranks_, ranks_);  // a tied one is the embedding's
    head.set_loss_head(MakeVocabularyHead(
        {.vocab_size = vocab_size, .sequence = input_.options.sequence}, group_));
    return absl::OkStatus();
  }

  const AxisInput& input_;
  const Group group_;
  const int64_t ranks_;
  std::set<RmsNormLayer*> inner_norms_;
};

absl::Status Apply(const AxisInput& input) { return TensorAxis(input).Apply(); }

MF_REGISTER(AxisRegistry(), "tensor", Axis{.order = 10, .apply = Apply});

}  // namespace
}  // namespace meshfold::parallel
