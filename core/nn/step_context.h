// What one micro-batch carries through the model besides its activations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/autograd/variable.h"
#include "core/nn/kv_cache.h"
#include "core/tensor/tensor.h"

namespace meshfold {

// Packed documents: one token axis, document n owns rows [cu_seqlens[n], cu_seqlens[n + 1]).
// A [B, S] batch is the case of B documents of equal length.
struct PackedBatch {
  Tensor tokens;                    // i32 [T]
  Tensor targets;                   // i32 [T], negative: not counted; undefined when generating
  Tensor positions;                 // i32 [T], restarting at 0 in each document; with a KV cache,
                                    // counted on from the cached ones
  std::vector<int32_t> cu_seqlens;  // [N + 1]
  Tensor valid;                     // u8 [T], 0 for padding; undefined: no padding
  int64_t num_padding = 0;          // how many of `valid` are 0
  int64_t num_tokens() const { return tokens.numel(); }
};

// Builds a batch on the current allocator from host vectors. `num_padding` tokens at the end are
// padding (a document of their own). positions are derived from cu_seqlens.
PackedBatch MakePackedBatch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                            const std::vector<int32_t>& cu_seqlens, int64_t num_padding = 0);

// The same with padding anywhere: is_padding [T], 1 where there is no token; empty: none.
PackedBatch MakePackedBatch(const std::vector<int32_t>& tokens, const std::vector<int32_t>& targets,
                            const std::vector<int32_t>& cu_seqlens,
                            absl::Span<const uint8_t> is_padding);

// Rows routed to each expert of one layer.
struct ExpertCounts {
  std::string layer;  // name of the MoE layer
  Tensor routed;      // i32 [E], before capacity drops
  Tensor kept;        // i32 [E]
};

// One per micro-batch, alive until its last backward (and deferred weight) action is done. Side
// outputs are ignored while a layer is being recomputed, so nothing is counted twice.
class StepContext {
 public:
  struct Options {
    double loss_scale = 1.0;    // 1 / number of counted targets in the whole global batch
    double token_weight = 1.0;  // this micro-batch's non-padding tokens / those of the global
                                // batch: auxiliary losses are means over tokens
    bool training = true;
    KvCache* kv_cache = nullptr;  // generation: keys and values of earlier positions
    bool want_logits = false;     // evaluation: the loss head keeps [T, V] logits
  };

  StepContext(const PackedBatch& batch, const Options& options)
      : batch_(batch), options_(options) {}
  StepContext(const StepContext&) = delete;
  StepContext& operator=(const StepContext&) = delete;

  const PackedBatch& batch() const { return batch_; }
  const Options& options() const { return options_; }

  // Identity on x through which `loss` (f32 [1], already weighted) takes effect in backward. Its
  // value is added up under `name` for the log.
  Variable AttachLoss(const Variable& x, const std::string& name, const Variable& loss);

  // Statistics of an MoE layer.
  void AddExpertCounts(ExpertCounts counts);

  // While true, side outputs are ignored and AttachLoss does not log.
  void set_recomputing(bool value) { recomputing_ = value; }
  bool recomputing() const { return recomputing_; }

  struct AttachedLoss {
    std::string name;
    Tensor value;  // f32 [1]
  };
  const std::vector<AttachedLoss>& attached_losses() const { return attached_losses_; }
  const std::vector<ExpertCounts>& expert_counts() const { return expert_counts_; }

  // Set by the loss head.
  Tensor logits;  // f32 [T, V] when options().want_logits

 private:
  PackedBatch batch_;
  Options options_;
  bool recomputing_ = false;
  std::vector<AttachedLoss> attached_losses_;
  std::vector<ExpertCounts> expert_counts_;
};

}  // namespace meshfold
