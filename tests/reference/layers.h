// Whole layers in f64, forward only: their gradients come from finite differences
// (numeric_gradient.h).
#pragma once

#include "tests/reference/attention.h"
#include "tests/reference/cross_entropy.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/linear.h"
#include "tests/reference/norm_softmax.h"
#include "tests/reference/rope.h"

namespace meshfold::reference {

// Linear layer with a bias, or none when it is empty.
inline Vec BiasedLinear(const Vec& x, const Vec& w, const Vec& bias, int64_t in) {
  const Vec y = Linear(x, w, in, static_cast<int64_t>(w.size()) / in);
  return bias.empty() ? y : AddRowVector(y, bias);
}

struct SwiGluMlpTensors {
  Vec x, gate_up, gate_up_bias, down, down_bias;
};

inline Vec SwiGluMlp(const SwiGluMlpTensors& t, int64_t hidden_size, int64_t intermediate_size) {
  const Vec hidden = BiasedLinear(t.x, t.gate_up, t.gate_up_bias, hidden_size);
  return BiasedLinear(SwiGlu(hidden, intermediate_size), t.down, t.down_bias, intermediate_size);
}

struct SelfAttentionConfig {
  int64_t hidden_size = 1;
  AttentionConfig core;       // cu_seqlens_k equal to cu_seqlens_q
  int64_t rotated_pairs = 0;  // of a head; 0: no rotation
  double theta = 1e4;
  int64_t q_norm_groups = 0, k_norm_groups = 0;  // 0: no norm; heads: per head; 1: whole projection
  double norm_eps = 1e-6;
  double clip = 0;  // 0: none
};

struct SelfAttentionTensors {
  Vec x, q, k, v, o, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
};

// Projections, norms, clip, rotation: in this order.
inline Vec Projected(const Vec& x, const Vec& w, const Vec& bias, const Vec& norm, int64_t heads,
                     int64_t norm_groups, bool rotate, const SelfAttentionConfig& c) {
  const int64_t head_dim = c.core.head_dim;
  Vec y = BiasedLinear(x, w, bias, c.hidden_size);
  if (norm_groups > 0) {
    y = RmsNorm(y, norm, {.cols = heads * head_dim, .groups = norm_groups, .eps = c.norm_eps}).y;
  }
  if (c.clip > 0) y = Clamp(y, -c.clip, c.clip);
  if (!rotate || c.rotated_pairs == 0) return y;
  const std::vector<int32_t>& cu_seqlens = c.core.cu_seqlens_q;
  std::vector<int> positions;
  for (size_t n = 0; n + 1 < cu_seqlens.size(); ++n) {
    for (int t = cu_seqlens[n]; t < cu_seqlens[n + 1]; ++t) positions.push_back(t - cu_seqlens[n]);
  }
  const RopeTables tables = MakeRopeTables(cu_seqlens.back(), c.rotated_pairs, c.theta);
  return Rope(y, heads, head_dim, positions, tables, c.rotated_pairs, false);
}

inline Vec SelfAttention(const SelfAttentionTensors& t, const SelfAttentionConfig& c) {
  const int64_t heads = c.core.heads, kv_heads = c.core.kv_heads;
  const Vec q = Projected(t.x, t.q, t.q_bias, t.q_norm, heads, c.q_norm_groups, true, c);
  const Vec k = Projected(t.x, t.k, t.k_bias, t.k_norm, kv_heads, c.k_norm_groups, true, c);
  const Vec v = Projected(t.x, t.v, t.v_bias, {}, kv_heads, 0, false, c);
  return BiasedLinear(Attention(q, k, v, c.core).out, t.o, t.o_bias, heads * c.core.value_dim);
}

// scale times the cross-entropy of norm(x) w^T; one norm group.
inline double HeadLoss(const Vec& x, const Vec& norm, const Vec& w,
                       const std::vector<int32_t>& targets, double eps, double scale) {
  const int64_t dim = static_cast<int64_t>(norm.size());
  const Vec normed = RmsNorm(x, norm, {.cols = dim, .eps = eps}).y;
  return LinearCrossEntropy(normed, w, targets, dim, scale).loss;
}

}  // namespace meshfold::reference
