// Differentiable ops on Variables. Each checks shapes, dtypes and host ids once (StatusError,
// InvalidArgument: "[Op] what, values"), runs its kernels on the current backend, and records
// itself when a gradient is wanted. All are local: none communicates. Activations are f32; weights
// may be bf16 or f16, their gradients are f32.
//
// Letters: T tokens, D model, F hidden, E experts, K chosen, R rows, H heads, V vocabulary.
// The maths of each op, forward and backward, is that of its kernel (core/backend/backend.h).
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/autograd/variable.h"
#include "core/backend/backend.h"

namespace meshfold {

// --- ops_math ---------------------------------------------------------------------------------
Variable Add(const Variable& a, const Variable& b);       // same shape
Variable Multiply(const Variable& a, const Variable& b);  // same shape
Variable Scale(const Variable& x, double alpha);
Variable Sigmoid(const Variable& x);
Variable Clamp(const Variable& x, double low, double high);
Variable AddBias(const Variable& x, const Variable& bias);  // x [T, D], bias [D] or [.., D / ..]
// gate_up [T, 2F] -> [T, F]: silu(first half) * second half.
Variable SwiGlu(const Variable& gate_up);

// --- ops_matmul -------------------------------------------------------------------------------
// y [T, O] = x [T, I] weight^T, weight [O, I] (or any shape whose last dim is I; O is the product
// of the others). Defers its weight gradient.
Variable Linear(const Variable& x, const Variable& weight);

// The rows of a vocabulary [V, D] that a table or head holds: those from `first` on, as many as it
// has. The default: all.
struct VocabularyPart {
  int64_t first = 0;
  int64_t size = 0;  // V; 0: the rows of the table
};

// loss f32 [1] = scale * sum over t with targets[t] >= 0 of cross-entropy(x W^T, targets).
// x [T, D], weight [V, D], targets i32 [T] (host: ids are checked against V). Gradients are
// computed in the forward by chunks, so no [T, V] tensor exists. When `logits` is given it receives
// [T, V]. Defers its weight gradient.
// With a part of the vocabulary: `combine` (Backend's LinearCrossEntropyArgs) makes the loss that
// of the whole one, dx is this part's summand, logits are this part's columns.
struct LinearCrossEntropyOptions {
  double scale = 1.0;
  Tensor* logits = nullptr;
  VocabularyPart part;
  CombineStatistics combine;
};
Variable LinearCrossEntropy(const Variable& x, const Variable& weight, const Tensor& targets,
                            const LinearCrossEntropyOptions& options);

// --- ops_experts ------------------------------------------------------------------------------
// SwiGLU experts over sorted rows (Backend::ExpertsForward): x [R, D], one gate_up [2F, D] and one
// down [D, F] per group, row_weights [R] or undefined. Returns y [R, D]. Groups without rows get
// zero gradients; frozen and trained weights may be mixed. Defers the weight gradients.
Variable Experts(const Variable& x, const RowCounts& rows, absl::Span<const Variable> gate_up,
                 absl::Span<const Variable> down, const Variable& row_weights);

// The same with all experts in two parameters, gate_up [E, 2, F, D] and down [E, D, F].
Variable Experts(const Variable& x, const RowCounts& rows, const Variable& gate_up,
                 const Variable& down, const Variable& row_weights);

// --- ops_norm ---------------------------------------------------------------------------------
struct RmsNormOptions {
  double eps = 1e-6;
  int64_t groups = 1;          // slices of a row normed apart (heads)
  bool zero_centered = false;  // (1 + weight)
};
Variable RmsNorm(const Variable& x, const Variable& weight, const RmsNormOptions& options);
// sum = x + residual, y = RmsNorm(sum): returns {sum, y} with one pass over memory.
std::pair<Variable, Variable> AddRmsNorm(const Variable& x, const Variable& residual,
                                         const Variable& weight, const RmsNormOptions& options);
Variable Softmax(const Variable& x);  // over the last dim

// --- ops_attention ----------------------------------------------------------------------------
// cos, sin f32 [positions, P]; positions i32 [T] (host: checked against the table).
struct RopeTable {
  Tensor cos, sin;
};
Variable Rope(const Variable& x, int64_t num_heads, const Tensor& positions,
              const RopeTable& table);

struct AttentionOptions {
  int64_t num_heads = 1, num_kv_heads = 1, head_dim = 1, value_dim = 1;
  double scale = 1.0;
  int64_t window = 0;  // as in AttentionArgs; 0: none
};
// q [Tq, H d], k [Tk, Hkv d], v [Tk, Hkv dv] -> [Tq, H dv]. cu_seqlens as in AttentionArgs; they
// are copied. A gradient needs equal query and key lengths.
Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   const std::vector<int32_t>& cu_seqlens_q,
                   const std::vector<int32_t>& cu_seqlens_k, const AttentionOptions& options);

// --- ops_rows ---------------------------------------------------------------------------------
// table [V, D], ids i32 [T] (host: checked against V) -> [T, D]. With a part of the vocabulary:
// zero rows for the ids of other parts.
Variable Embedding(const Variable& table, const Tensor& ids, const VocabularyPart& part = {});

// Index tables of one routing: how token copies are laid out in rows (Backend::SortByExpert).
struct RowIndex {
  Tensor row_to_slot;  // i32 [R]: t * K + k of each row
  Tensor token_rows;   // i32 [T, K]: rows of each token ascending, -1 padded
};
// x [T, D] -> [R, D], R = index.row_to_slot.numel().
Variable GatherTokenRows(const Variable& x, const RowIndex& index);
// y [R, D] -> [T, D]: sum of each token's rows in ascending row order.
Variable CombineTokenRows(const Variable& y, const RowIndex& index);
// weights [T, K] -> [R]: the weight of each row.
Variable GatherRowWeights(const Variable& weights, const RowIndex& index);
Variable GatherCols(const Variable& scores, const Tensor& ids);  // [T, E], i32 [T, K] -> [T, K]
Variable NormalizeRows(const Variable& w, double eps, double scale);
// f32 [1]: sum over valid t and e of coefficients[e] x[t, e]; coefficients [E] are constants.
Variable WeightedSum(const Variable& x, const Tensor& coefficients, const Tensor& valid);
// f32 [1]: scale * sum over valid t of logsumexp(z_t)^2.
Variable SquaredLogSumExp(const Variable& z, double scale, const Tensor& valid);

// Identity on x whose backward sends gradient 1 into `loss` (f32 [1], already weighted): an
// auxiliary loss takes effect where it arises, whatever gradient comes back to x.
Variable AttachLoss(const Variable& x, const Variable& loss);

}  // namespace meshfold
