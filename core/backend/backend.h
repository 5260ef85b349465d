// Backend: the kernels that ops are made of, one virtual each, one implementation per device.
//
// Contract of every kernel:
// - Shapes and dtypes are checked once by the op that calls (core/autograd/ops_*); kernels check
//   invariants only. All floating-point tensors are f32 unless said otherwise; weights of GEMMs,
//   embeddings and norms may also be bf16 or f16 and are converted to f32 at the edge.
// - Tensors are rows of cols() elements with a pitch (core/tensor/tensor.h); an output is a
//   caller-allocated tensor, written whole unless "accumulate" says it is added to. An output may
//   be the same tensor as an elementwise input, never a partial overlap.
// - A kernel is enqueued on CurrentContext().stream and may return before it has run; it reads no
//   device value on the host. The CPU backend runs it at once on CurrentContext().num_threads.
// - The same inputs, shapes and number of threads give the same bits. Sums over rows (weight
//   gradients, column sums) go through fixed chunks that do not depend on the number of threads,
//   except inside GEMM.
// - Zero rows are legal everywhere and leave sums at zero.
// - No kernel allocates in steady state other than from CurrentContext().allocator.
//
// Letters: T tokens, D model, F expert hidden, E experts, K chosen experts, R rows (token copies),
// H heads, V vocabulary, N documents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/backend/completion.h"
#include "core/base/registry.h"
#include "core/base/rng.h"
#include "core/tensor/tensor.h"

namespace meshfold {

// Rows of each group (expert) in a grouped operand, on the host: group g owns rows
// [offsets[g], offsets[g + 1]).
struct RowCounts {
  std::vector<int64_t> offsets = {0};
  int64_t num_groups() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t begin(int64_t g) const { return offsets[static_cast<size_t>(g)]; }
  int64_t count(int64_t g) const {
    return offsets[static_cast<size_t>(g) + 1] - offsets[static_cast<size_t>(g)];
  }
  int64_t total() const { return offsets.back(); }
};

// out = op(a) op(b) (+ out when accumulate). a, b, out: matrices; op transposes when asked.
struct GemmArgs {
  Tensor a;    // [M, K], or [K, M] when transpose_a
  Tensor b;    // [K, N], or [N, K] when transpose_b; f32, bf16 or f16
  Tensor out;  // f32 [M, N]
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

// y = x rstd w (or x rstd (1 + w) when zero_centered), rstd = (mean(x^2) + eps)^-1/2 over each of
// `groups` equal slices of a row (1: the whole row; H: per head with one weight [cols / groups]).
// Zhang and Sennrich 2019. With `residual` x is replaced by x + residual, stored in `sum`.
struct RmsNormArgs {
  Tensor x;         // [T, D]
  Tensor residual;  // [T, D] or undefined
  Tensor weight;    // [D / groups]
  double eps = 1e-6;
  int64_t groups = 1;
  bool zero_centered = false;
};

// Softmax attention over packed documents, causal, grouped queries, optional window.
// Query i of a document with nq queries and nk keys stands at key position nk - nq + i: nq == nk in
// training, nq < nk with a KV cache. Query head h uses KV head h / (H / Hkv).
struct AttentionArgs {
  Tensor q;                                // [Tq, H * head_dim]
  Tensor k;                                // [Tk, Hkv * head_dim]
  Tensor v;                                // [Tk, Hkv * value_dim]
  absl::Span<const int32_t> cu_seqlens_q;  // host, [N + 1], from 0 to Tq
  absl::Span<const int32_t> cu_seqlens_k;  // host, [N + 1], from 0 to Tk
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 1;
  int64_t value_dim = 1;
  double scale = 1.0;  // on q . k
  int64_t window = 0;  // 0: none; else keys j with i - window < j <= i are seen
};

// Makes statistics of a part of the vocabulary those of the whole one, in place. f64 [R, 3] for
// each row of logits z: its maximum m, sum over classes of exp(z - m), and z of the target, 0 where
// another part has it. Every part's call has the same R, also where no row counts.
using CombineStatistics = std::function<void(const Tensor& statistics_R3)>;

// Cross-entropy of x W^T by chunks of rows, so that [T, V] logits never exist unless asked for.
struct LinearCrossEntropyArgs {
  Tensor x;            // [T, D]
  Tensor weight;       // [V, D]
  Tensor targets;      // i32 [T]; negative: ignored
  double scale = 1.0;  // loss = scale * sum over counted t of (lse_t - z_t[target])
  // Where weight is a part of the vocabulary [V', D]: the id of its first row, and what makes the
  // statistics of a chunk of rows whole, called once a chunk. The number of chunks follows from T
  // and `vocab_size` (0: V) alone.
  int64_t first_id = 0;
  int64_t vocab_size = 0;
  CombineStatistics combine;
  // Outputs.
  Tensor loss;     // f32 [1]
  Tensor dx;       // [T, D] gradient of loss, or undefined when not wanted
  Tensor dweight;  // [V, D] gradient of loss, or undefined when not wanted
  Tensor logits;   // [T, V] or undefined
  bool accumulate_dweight = false;
};

// SwiGLU experts over rows sorted by expert: y_r = c_r W_down,e (silu(g) * u) with
// [g | u] = W_gate_up,e x_r. Weights come as one tensor per group, so own experts and copies that
// travelled stand side by side. Shazeer 2020 (GLU variants); c_r is the routing weight of the row.
struct ExpertsArgs {
  Tensor x;                          // [R, D]
  RowCounts rows;                    // over the groups
  absl::Span<const Tensor> gate_up;  // per group [2F, D], gate rows first
  absl::Span<const Tensor> down;     // per group [D, F]
  Tensor row_weights;                // f32 [R], or undefined: all ones
};

struct ExpertsBackwardArgs {
  Tensor hidden;  // [R, 2F] as stored by the forward
  Tensor dy;      // [R, D]
  // Outputs, each undefined (or empty) when not wanted.
  Tensor dx;                          // [R, D]
  Tensor drow_weights;                // [R]
  Tensor dhidden;                     // [R, 2F]: kept when the weights are done in a later call
  absl::Span<const Tensor> dgate_up;  // per group [2F, D]
  absl::Span<const Tensor> ddown;     // per group [D, F]
  bool dhidden_is_input = false;      // a weights-only call: dhidden holds an earlier result
  bool accumulate_weights = false;    // add to dgate_up and ddown; zero-row groups write zeros
                                      // otherwise
};

// Which experts a token takes. Without groups: the k best of scores + bias. With groups (DeepSeek
// V3): a group's score is the sum of its two best biased scores, only experts of the best
// top_k_groups groups compete. Ties go to the lower index.
struct SelectExpertsArgs {
  Tensor scores;  // [T, E]
  Tensor bias;    // [E] or undefined
  int64_t num_groups = 1;
  int64_t top_k_groups = 1;
  Tensor ids;  // out: i32 [T, K], best first
};

// Sorts (token, slot) pairs by expert, tokens ascending inside an expert.
struct SortByExpertArgs {
  Tensor ids;    // i32 [T, K]; a slot with a negative id gets no row
  Tensor valid;  // u8 [T] or undefined; tokens with 0 (padding) get no rows
  int64_t num_experts = 0;
  // Host, [E]: the rows that each expert keeps, its first ones; later ones are dropped. Empty: all.
  absl::Span<const int64_t> limits;
  // Outputs.
  Tensor counts;       // i32 [E]: kept rows of each expert
  Tensor routed;       // i32 [E]: rows before dropping
  Tensor row_to_slot;  // i32 [T * K]: flat t * K + k of each kept row, in row order; the rest -1
  Tensor token_rows;   // i32 [T, K]: a token's rows ascending (by expert), -1 padded at the end
};

// Decoupled-decay Adam (Loshchilov and Hutter 2019), one pass over memory.
struct AdamWArgs {
  Tensor param;       // f32, or bf16/f16 with `master`
  Tensor master;      // f32 copy that is updated, or undefined
  Tensor grad;        // f32
  Tensor m, v;        // f32 moments
  Tensor grad_scale;  // f32 [1]: clip factor, multiplies grad first; undefined: 1
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  int64_t step = 1;  // 1 for the first update (bias correction)
};

// SGD with momentum as in PyTorch (buf = momentum buf + g; p -= lr buf), decoupled decay.
struct SgdArgs {
  Tensor param, master, grad;
  Tensor momentum_buffer;  // f32, or undefined without momentum
  Tensor grad_scale;       // f32 [1] or undefined
  double lr = 0, momentum = 0, weight_decay = 0;
};

// Elements that Backend::BlockSquareSums adds up together: part of a gradient norm's bits.
inline constexpr int64_t kSquareSumBlock = 1024;

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual Stream& default_stream() = 0;

  // --- memory -------------------------------------------------------------------------------
  virtual void Fill(double value, const Tensor& out) = 0;     // any dtype
  virtual void Copy(const Tensor& x, const Tensor& out) = 0;  // any dtypes, same shape
  // Starts copying the logical elements of a contiguous tensor to host memory.
  virtual std::unique_ptr<Completion> CopyToHost(const Tensor& x, void* host) = 0;
  virtual std::unique_ptr<Completion> CopyFromHost(const void* host, const Tensor& out) = 0;
  // out[i] = mean + stddev * NormalAt(key, first_index + i) over logical flat indices.
  virtual void RandomNormal(RngKey key, uint64_t first_index, double mean, double stddev,
                            const Tensor& out) = 0;

  // --- elementwise --------------------------------------------------------------------------
  virtual void Add(const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  virtual void Multiply(const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  virtual void Axpy(double alpha, const Tensor& x, const Tensor& y) = 0;  // y += alpha x
  virtual void Scale(double alpha, const Tensor& x, const Tensor& out) = 0;
  virtual void ScaleByScalar(const Tensor& x, const Tensor& scalar, const Tensor& out) = 0;  // [1]
  virtual void Sigmoid(const Tensor& x, const Tensor& out) = 0;
  virtual void SigmoidBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) = 0;
  virtual void Clamp(const Tensor& x, double low, double high, const Tensor& out) = 0;
  // dx = dy where low < x < high (as PyTorch: also at the borders), else 0.
  virtual void ClampBackward(const Tensor& x, double low, double high, const Tensor& dy,
                             const Tensor& dx) = 0;
  virtual void AddRowVector(const Tensor& x, const Tensor& bias, const Tensor& out) = 0;
  // out[c] (+)= sum over rows of x.
  virtual void ColumnSum(const Tensor& x, bool accumulate, const Tensor& out) = 0;
  // gate_up [T, 2F] -> out [T, F]: silu(gate) * up.
  virtual void SwiGlu(const Tensor& gate_up, const Tensor& out) = 0;
  virtual void SwiGluBackward(const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) = 0;

  // --- matrix products ----------------------------------------------------------------------
  virtual void Gemm(const GemmArgs& args) = 0;
  virtual void ExpertsForward(const ExpertsArgs& args, const Tensor& hidden, const Tensor& y) = 0;
  virtual void ExpertsBackward(const ExpertsArgs& args, const ExpertsBackwardArgs& backward) = 0;

  // --- norms, softmax, losses ---------------------------------------------------------------
  // y [T, D], rstd [T, groups]; sum [T, D] only with args.residual.
  virtual void RmsNorm(const RmsNormArgs& args, const Tensor& y, const Tensor& rstd,
                       const Tensor& sum) = 0;
  // args.x is the normed input (the sum). dx = gradient (+ dsum when defined); dweight [D / groups]
  // is added to when accumulate_dweight, undefined when not wanted.
  virtual void RmsNormBackward(const RmsNormArgs& args, const Tensor& rstd, const Tensor& dy,
                               const Tensor& dsum, const Tensor& dx, const Tensor& dweight,
                               bool accumulate_dweight) = 0;
  virtual void Softmax(const Tensor& x, const Tensor& out) = 0;  // over the last dim
  virtual void SoftmaxBackward(const Tensor& y, const Tensor& dy, const Tensor& dx) = 0;
  virtual void LogSumExp(const Tensor& x, const Tensor& out) = 0;  // [T, E] -> [T]
  virtual void LinearCrossEntropy(const LinearCrossEntropyArgs& args) = 0;

  // --- attention ----------------------------------------------------------------------------
  // Rotates each head's first 2 * P dims (half-split pairs (i, i + P)) by the angle of its
  // position: cos, sin [positions, P]; positions i32 [T]. `inverse` rotates back (the adjoint).
  virtual void Rope(const Tensor& x, int64_t num_heads, const Tensor& positions, const Tensor& cos,
                    const Tensor& sin, bool inverse, const Tensor& out) = 0;
  // out [Tq, H * value_dim]; lse f32 [Tq, H]. Dao 2023 (FlashAttention-2).
  virtual void Attention(const AttentionArgs& args, const Tensor& out, const Tensor& lse) = 0;
  virtual void AttentionBackward(const AttentionArgs& args, const Tensor& out, const Tensor& lse,
                                 const Tensor& dout, const Tensor& dq, const Tensor& dk,
                                 const Tensor& dv) = 0;

  // --- rows ---------------------------------------------------------------------------------
  // out[r] = x[index[r] / divisor], zeros where index[r] is negative. index i32 [R].
  virtual void GatherRows(const Tensor& x, const Tensor& index, int64_t divisor,
                          const Tensor& out) = 0;
  // out[t] = sum over k of y[token_rows[t, k]] in that order, skipping negative entries.
  virtual void CombineRows(const Tensor& y, const Tensor& token_rows, const Tensor& out) = 0;
  // table [V, D], ids i32 [T] -> out [T, D]; zero rows for negative ids (of another part of a cut
  // table).
  virtual void Embedding(const Tensor& table, const Tensor& ids, const Tensor& out) = 0;
  // dtable[ids[t]] += dy[t] in token order, skipping negative ids; the table is zeroed first unless
  // accumulate.
  virtual void EmbeddingBackward(const Tensor& ids, const Tensor& dy, bool accumulate,
                                 const Tensor& dtable) = 0;
  // out[i] = x[index[i]] over flat elements, 0 where negative; x, out f32, index i32.
  virtual void GatherElements(const Tensor& x, const Tensor& index, const Tensor& out) = 0;
  // out zeroed, then out[index[i]] = x[i]; indices are unique.
  virtual void ScatterElements(const Tensor& x, const Tensor& index, const Tensor& out) = 0;
  // scores [T, E], ids i32 [T, K] -> out [T, K], and its adjoint (dscores zeroed first).
  virtual void GatherCols(const Tensor& scores, const Tensor& ids, const Tensor& out) = 0;
  virtual void GatherColsBackward(const Tensor& ids, const Tensor& dout, const Tensor& dscores) = 0;
  // out = scale * w / (rowsum(w) + eps), and its exact gradient.
  virtual void NormalizeRows(const Tensor& w, double eps, double scale, const Tensor& out) = 0;
  virtual void NormalizeRowsBackward(const Tensor& w, double eps, double scale, const Tensor& dout,
                                     const Tensor& dw) = 0;
  // out[1] = sum over valid t (u8 [T], or undefined: all) and e of coefficients[e] * x[t, e], in
  // f64; dx[t, e] = dout[0] * coefficients[e] on valid rows, else 0.
  virtual void WeightedSum(const Tensor& x, const Tensor& coefficients, const Tensor& valid,
                           const Tensor& out) = 0;
  virtual void WeightedSumBackward(const Tensor& coefficients, const Tensor& valid,
                                   const Tensor& dout, const Tensor& dx) = 0;
  // out[1] = scale * sum over valid t of logsumexp(z_t)^2; dz = dout[0] * scale * 2 lse softmax(z).
  virtual void SquaredLogSumExp(const Tensor& z, double scale, const Tensor& valid,
                                const Tensor& out) = 0;
  virtual void SquaredLogSumExpBackward(const Tensor& z, double scale, const Tensor& valid,
                                        const Tensor& dout, const Tensor& dz) = 0;

  // --- routing (no gradient) ----------------------------------------------------------------
  virtual void SelectExperts(const SelectExpertsArgs& args) = 0;
  virtual void SortByExpert(const SortByExpertArgs& args) = 0;

  // --- optimizer ----------------------------------------------------------------------------
  // out f64 [ceil(numel / kSquareSumBlock)]: sum of squares of each run of so many logical
  // elements.
  virtual void BlockSquareSums(const Tensor& x, const Tensor& out) = 0;
  virtual void AdamW(const AdamWArgs& args) = 0;
  virtual void Sgd(const SgdArgs& args) = 0;
};

// Backends by name ("cpu", "cuda"). A factory fails with the reason when the device is absent.
using BackendFactory = absl::StatusOr<std::unique_ptr<Backend>> (*)();
Registry<BackendFactory>& BackendRegistry();
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(absl::string_view name);

// The backend of the current context.
Backend& CurrentBackend();

}  // namespace meshfold
