// Evaluation of a [B, S] batch as other frameworks see it: loss, logits and gradients under Hugging
// Face names. The instrument by which any layout is compared with any other program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/io/safetensors.h"
#include "core/nn/layer_stack.h"
#include "models/family.h"
#include "parallel/axis.h"

namespace meshfold::train {

// Token ids and labels, row-major [batch, sequence]. labels[t] is compared with the logits at t -
// 1, as Hugging Face does; -100 (any negative value) is not counted.
struct EvalBatch {
  int64_t batch = 0, sequence = 0;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> labels;
};

// Reads `input_ids` [B, S] and optional `labels` [B, S] (default: the ids) from a safetensors file,
// any integer type. InvalidArgument for other ranks or shapes, or an id outside [0, vocab_size).
absl::StatusOr<EvalBatch> ReadEvalBatch(const std::string& path, int64_t vocab_size);

struct EvalResult {
  double loss = 0.0;   // mean over counted targets (0 when there is none), plus auxiliary losses
  int64_t tokens = 0;  // counted targets
  std::vector<NamedTensor> tensors;  // "loss" [1], "logits" [B, S, V], "grad.<HF name>"
};

// Forward, and, when `want_tensors`, backward. The loss is the language-model loss plus whatever
// auxiliary losses the model's config has switched on. Runs in the current context.
//
// With `meshes`: collective; `model` is this rank's part, `batch` the whole batch, whose rows are
// cut over the data ranks (ceil(B / dp) each, the last ones fewer or none). Loss and tokens are the
// batch's on every rank; tensors are whole, and on rank 0 alone.
absl::StatusOr<EvalResult> EvaluateBatch(LayerStack& model, const models::Family& family,
                                         const EvalBatch& batch, bool want_tensors,
                                         const parallel::Meshes* meshes = nullptr);

}  // namespace meshfold::train
