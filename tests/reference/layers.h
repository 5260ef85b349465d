// Whole layers in f64, forward only: their gradients come from finite differences
// (numeric_gradient.h).
#pragma once

#include <algorithm>
#include <cmath>

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

// What one head of attention does; head_dim of q and k, value_dim of v.
struct AttentionConfig {
  int64_t heads = 1, kv_heads = 1, head_dim = 1, value_dim = 1;
  double scale = 1;
  int64_t window = 0;  // 0: none
  std::vector<int> cu_seqlens;
};

// Position i of one head over positions [first, i].
inline Vec AttendOne(const Vec& q, const Vec& k, const Vec& v, const AttentionConfig& c,
                     int64_t first, int64_t i, int64_t head) {
  const int64_t d = c.head_dim, kv_head = head / (c.heads / c.kv_heads);
  Vec scores, out(c.value_dim);
  for (int64_t j = first; j <= i; ++j) {
    double dot = 0;
    for (int64_t e = 0; e < d; ++e) {
      dot += q[(i * c.heads + head) * d + e] * k[(j * c.kv_heads + kv_head) * d + e];
    }
    scores.push_back(c.scale * dot);
  }
  const Vec p = Softmax(scores, static_cast<int64_t>(scores.size()));
  for (int64_t j = first; j <= i; ++j) {
    for (int64_t e = 0; e < c.value_dim; ++e) {
      out[e] += p[j - first] * v[(j * c.kv_heads + kv_head) * c.value_dim + e];
    }
  }
  return out;
}

// Causal attention inside each document, over a window if there is one.
inline Vec CausalAttention(const Vec& q, const Vec& k, const Vec& v, const AttentionConfig& c) {
  Vec out;
  for (size_t n = 0; n + 1 < c.cu_seqlens.size(); ++n) {
    for (int64_t i = c.cu_seqlens[n]; i < c.cu_seqlens[n + 1]; ++i) {
      int64_t first = c.cu_seqlens[n];
      if (c.window > 0) first = std::max(first, i - c.window + 1);
      for (int64_t head = 0; head < c.heads; ++head) {
        const Vec row = AttendOne(q, k, v, c, first, i, head);
        out.insert(out.end(), row.begin(), row.end());
      }
    }
  }
  return out;
}

struct SelfAttentionConfig {
  int64_t hidden_size = 1;
  AttentionConfig core;
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
  const std::vector<int>& cu_seqlens = c.core.cu_seqlens;
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
  return BiasedLinear(CausalAttention(q, k, v, c.core), t.o, t.o_bias, heads * c.core.value_dim);
}

// Sum over targets >= 0 of the cross-entropy of rows of logits.
inline double CrossEntropy(const Vec& z, int64_t vocab, const std::vector<int>& targets) {
  const Vec lse = LogSumExp(z, vocab);
  double loss = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] >= 0) loss += lse[t] - z[t * vocab + targets[t]];
  }
  return loss;
}

inline Vec CrossEntropyBackward(const Vec& z, int64_t vocab, const std::vector<int>& targets) {
  Vec dz = Softmax(z, vocab);
  for (size_t t = 0; t < targets.size(); ++t) {
    for (int64_t v = 0; v < vocab; ++v) {
      double& d = dz[t * vocab + v];
      d = targets[t] < 0 ? 0 : d - (v == targets[t] ? 1 : 0);
    }
  }
  return dz;
}

// scale times the cross-entropy of norm(x) w^T; one norm group.
inline double HeadLoss(const Vec& x, const Vec& norm, const Vec& w, const std::vector<int>& targets,
                       double eps, double scale) {
  const int64_t dim = static_cast<int64_t>(norm.size()), vocab = NumRows(w, dim);
  const Vec z = Linear(RmsNorm(x, norm, {.cols = dim, .eps = eps}).y, w, dim, vocab);
  return scale * CrossEntropy(z, vocab, targets);
}

// SwiGLU experts: group g owns rows [offsets[g], offsets[g + 1]) of x; its gate_up [2 F, D] and
// down [D, F] stand one after the other. weights [R], or empty: all ones.
struct ExpertsTensors {
  Vec x, gate_up, down, weights;
};

inline Vec Experts(const ExpertsTensors& t, const std::vector<int64_t>& offsets, int64_t d,
                   int64_t f) {
  Vec y;
  for (size_t g = 0; g + 1 < offsets.size(); ++g) {
    const Vec gate_up = Row(t.gate_up, static_cast<int64_t>(g), 2 * f * d);
    const Vec down = Row(t.down, static_cast<int64_t>(g), d * f);
    for (int64_t r = offsets[g]; r < offsets[g + 1]; ++r) {
      const double weight = t.weights.empty() ? 1 : t.weights[r];
      const Vec hidden = SwiGlu(Linear(Row(t.x, r, d), gate_up, d, 2 * f), f);
      for (double value : Linear(hidden, down, f, d)) y.push_back(weight * value);
    }
  }
  return y;
}

}  // namespace meshfold::reference
