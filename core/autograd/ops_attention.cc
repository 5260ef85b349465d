// Rotary positions and attention.
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/op_check.h"
#include "core/autograd/ops.h"

namespace meshfold {
namespace {

void CheckRope(const Variable& x, int64_t num_heads, const Tensor& positions,
               const RopeTable& table) {
  CheckF32("Rope", "x", x);
  int64_t head_dim = num_heads > 0 ? x.shape().cols() / num_heads : 0;
  int64_t rotated = 2 * table.cos.cols();
  if (num_heads <= 0 || head_dim * num_heads != x.shape().cols() || rotated > head_dim ||
      table.cos.shape() != table.sin.shape() || positions.numel() != x.shape().rows()) {
    ThrowInvalidArgument(
        absl::StrCat("[Rope] ", num_heads, " heads, cos ", table.cos.shape().ToString(), ", sin ",
                     table.sin.shape().ToString(), " (", rotated, " rotated dims) and ",
                     positions.numel(), " positions do not fit x ", x.shape().ToString()));
  }
  CheckIds("Rope", "position", positions, table.cos.dim(0), /*negative_ok=*/false);
}

}  // namespace

Variable Rope(const Variable& x, int64_t num_heads, const Tensor& positions,
              const RopeTable& table) {
  CheckRope(x, num_heads, positions, table);
  Tensor y = Tensor::Empty(x.shape());
  CurrentBackend().Rope(x.data(), num_heads, positions, table.cos, table.sin, false, y);
  if (!ShouldRecord({x})) return Variable(y);
  Saved saved;
  saved.State("positions", positions);
  saved.State("cos", table.cos);
  saved.State("sin", table.sin);
  return Record("Rope", {y}, {x}, std::move(saved), [num_heads](BackwardCall& call) {
    Tensor dx = Tensor::Empty(call.grad_out().shape());
    CurrentBackend().Rope(call.grad_out(), num_heads, call.saved(0), call.saved(1), call.saved(2),
                          true, dx);
    call.Set(0, dx);
  })[0];
}

namespace {

void CheckSeqlens(const char* what, const std::vector<int32_t>& cu_seqlens, int64_t total) {
  if (cu_seqlens.empty() || cu_seqlens.front() != 0 || cu_seqlens.back() != total) {
    ThrowInvalidArgument(absl::StrCat("[Attention] ", what, " must rise from 0 to the ", total,
                                      " rows, goes from ",
                                      cu_seqlens.empty() ? -1 : cu_seqlens.front(), " to ",
                                      cu_seqlens.empty() ? -1 : cu_seqlens.back()));
  }
  for (size_t i = 1; i < cu_seqlens.size(); ++i) {
    if (cu_seqlens[i] >= cu_seqlens[i - 1]) continue;
    ThrowInvalidArgument(absl::StrCat("[Attention] ", what, " falls from ", cu_seqlens[i - 1],
                                      " to ", cu_seqlens[i], " at document ", i - 1));
  }
}

// A document has at least as many keys as queries: its queries are its last positions.
void CheckDocuments(const std::vector<int32_t>& cu_q, const std::vector<int32_t>& cu_k) {
  if (cu_q.size() != cu_k.size()) {
    ThrowInvalidArgument(absl::StrCat("[Attention] ", cu_q.size() - 1, " query documents and ",
                                      cu_k.size() - 1, " key documents"));
  }
  for (size_t i = 1; i < cu_q.size(); ++i) {
    int32_t queries = cu_q[i] - cu_q[i - 1], keys = cu_k[i] - cu_k[i - 1];
    if (queries <= keys) continue;
    ThrowInvalidArgument(absl::StrCat("[Attention] document ", i - 1, " has ", queries,
                                      " queries and only ", keys, " keys"));
  }
}

void CheckHeads(const Variable& q, const Variable& k, const Variable& v,
                const AttentionOptions& o) {
  CheckF32("Attention", "q", q);
  CheckF32("Attention", "k", k);
  CheckF32("Attention", "v", v);
  bool fits = o.num_kv_heads > 0 && o.num_heads % o.num_kv_heads == 0 &&
              q.shape().cols() == o.num_heads * o.head_dim &&
              k.shape().cols() == o.num_kv_heads * o.head_dim &&
              v.shape().cols() == o.num_kv_heads * o.value_dim &&
              k.shape().rows() == v.shape().rows() && o.window >= 0;
  if (fits) return;
  ThrowInvalidArgument(absl::StrCat(
      "[Attention] q ", q.shape().ToString(), ", k ", k.shape().ToString(), ", v ",
      v.shape().ToString(), " do not fit ", o.num_heads, " heads, ", o.num_kv_heads,
      " KV heads, head_dim ", o.head_dim, ", value_dim ", o.value_dim, ", window ", o.window));
}

AttentionArgs MakeAttentionArgs(Tensor q, Tensor k, Tensor v, const std::vector<int32_t>& cu_q,
                                const std::vector<int32_t>& cu_k, const AttentionOptions& options) {
  AttentionArgs args;
  args.q = std::move(q);
  args.k = std::move(k);
  args.v = std::move(v);
  args.cu_seqlens_q = cu_q;
  args.cu_seqlens_k = cu_k;
  args.num_heads = options.num_heads;
  args.num_kv_heads = options.num_kv_heads;
  args.head_dim = options.head_dim;
  args.value_dim = options.value_dim;
  args.scale = options.scale;
  args.window = options.window;
  return args;
}

// Slots: q, k, v, out, lse.
void AttentionBackward(BackwardCall& call, const std::vector<int32_t>& cu_seqlens,
                       const AttentionOptions& options) {
  AttentionArgs args = MakeAttentionArgs(call.saved(0), call.saved(1), call.saved(2), cu_seqlens,
                                         cu_seqlens, options);
  Tensor dq = Tensor::Empty(args.q.shape()), dk = Tensor::Empty(args.k.shape()),
         dv = Tensor::Empty(args.v.shape());
  CurrentBackend().AttentionBackward(args, call.saved(3), call.saved(4), call.grad_out(), dq, dk,
                                     dv);
  Tensor grads[] = {dq, dk, dv};
  for (int i = 0; i < 3; ++i) {
    if (call.needs(i)) call.Set(i, grads[i]);
  }
}

}  // namespace

Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   const std::vector<int32_t>& cu_seqlens_q,
                   const std::vector<int32_t>& cu_seqlens_k, const AttentionOptions& options) {
  CheckHeads(q, k, v, options);
  CheckSeqlens("cu_seqlens_q", cu_seqlens_q, q.shape().rows());
  CheckSeqlens("cu_seqlens_k", cu_seqlens_k, k.shape().rows());
  CheckDocuments(cu_seqlens_q, cu_seqlens_k);
  bool record = ShouldRecord({q, k, v});
  if (record && cu_seqlens_q != cu_seqlens_k) {
    ThrowInvalidArgument(absl::StrCat("[Attention] a gradient needs equal query and key lengths, ",
                                      q.shape().rows(), " rows against ", k.shape().rows()));
  }
  int64_t rows = q.shape().rows();
  Tensor out = Tensor::Empty({rows, options.num_heads * options.value_dim});
  Tensor lse = Tensor::Contiguous({rows, options.num_heads});
  CurrentBackend().Attention(
      MakeAttentionArgs(q.data(), k.data(), v.data(), cu_seqlens_q, cu_seqlens_k, options), out,
      lse);
  if (!record) return Variable(out);
  Saved saved;
  saved.Input("q", q);
  saved.Input("k", k);
  saved.Input("v", v);
  saved.Activation("out", out);
  saved.Activation("lse", lse);
  auto backward = [options, cu = cu_seqlens_q](BackwardCall& call) {
    AttentionBackward(call, cu, options);
  };
  return Record("Attention", {out}, {q, k, v}, std::move(saved), backward)[0];
}

}  // namespace meshfold
