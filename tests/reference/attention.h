// Softmax attention over packed documents in f64, one query and one key at a time.
#pragma once

#include <cmath>
#include <vector>

#include "tests/reference/vec.h"

namespace meshfold::reference {

// As AttentionArgs of core/backend/backend.h.
struct AttentionConfig {
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k;
  int64_t heads = 1, kv_heads = 1, head_dim = 1, value_dim = 1;
  double scale = 1;
  int64_t window = 0;
};

struct AttentionResult {
  Vec out, lse;
};
struct AttentionGradients {
  Vec dq, dk, dv;
};

// Calls visit(query, head, keys) with flat row numbers for every query and the keys it sees.
template <typename F>
void ForEachQuery(const AttentionConfig& c, F&& visit) {
  for (size_t n = 0; n + 1 < c.cu_seqlens_q.size(); ++n) {
    const int64_t queries = c.cu_seqlens_q[n + 1] - c.cu_seqlens_q[n];
    const int64_t keys = c.cu_seqlens_k[n + 1] - c.cu_seqlens_k[n];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t position = keys - queries + i;
      std::vector<int64_t> seen;
      for (int64_t j = 0; j <= position; ++j) {
        if (c.window == 0 || position - j < c.window) seen.push_back(c.cu_seqlens_k[n] + j);
      }
      for (int64_t head = 0; head < c.heads; ++head) visit(c.cu_seqlens_q[n] + i, head, seen);
    }
  }
}

// sum of a[i] b[j] over one head's elements.
inline double HeadDot(const Vec& a, int64_t a_row, const Vec& b, int64_t b_row, int64_t dim) {
  double dot = 0;
  for (int64_t e = 0; e < dim; ++e) dot += a[a_row * dim + e] * b[b_row * dim + e];
  return dot;
}

// The log-sum-exp of a query's scores; `p` holds the softmax.
inline double Probabilities(const Vec& q, const Vec& k, const AttentionConfig& c, int64_t query,
                            int64_t head, const std::vector<int64_t>& keys, Vec& p) {
  const int64_t kv_head = head / (c.heads / c.kv_heads);
  p.clear();
  double max = -INFINITY, sum = 0;
  for (int64_t key : keys) {
    p.push_back(c.scale *
                HeadDot(q, query * c.heads + head, k, key * c.kv_heads + kv_head, c.head_dim));
    max = std::max(max, p.back());
  }
  for (double& z : p) sum += z = std::exp(z - max);
  for (double& z : p) z /= sum;
  return max + std::log(sum);
}

inline AttentionResult Attention(const Vec& q, const Vec& k, const Vec& v,
                                 const AttentionConfig& c) {
  AttentionResult result;
  ForEachQuery(c, [&](int64_t query, int64_t head, const std::vector<int64_t>& keys) {
    Vec p;
    result.lse.push_back(Probabilities(q, k, c, query, head, keys, p));
    const int64_t kv_head = head / (c.heads / c.kv_heads);
    for (int64_t e = 0; e < c.value_dim; ++e) {
      double sum = 0;
      for (size_t j = 0; j < keys.size(); ++j) {
        sum += p[j] * v[(keys[j] * c.kv_heads + kv_head) * c.value_dim + e];
      }
      result.out.push_back(sum);
    }
  });
  return result;
}

inline AttentionGradients AttentionBackward(const Vec& q, const Vec& k, const Vec& v,
                                            const Vec& dout, const AttentionConfig& c) {
  AttentionGradients g{Vec(q.size()), Vec(k.size()), Vec(v.size())};
  ForEachQuery(c, [&](int64_t query, int64_t head, const std::vector<int64_t>& keys) {
    Vec p, dp;
    Probabilities(q, k, c, query, head, keys, p);
    const int64_t row = query * c.heads + head, d = c.head_dim, w = c.value_dim;
    double mean = 0;
    for (size_t j = 0; j < keys.size(); ++j) {
      const int64_t key = keys[j] * c.kv_heads + head / (c.heads / c.kv_heads);
      for (int64_t e = 0; e < w; ++e) g.dv[key * w + e] += p[j] * dout[row * w + e];
      dp.push_back(HeadDot(dout, row, v, key, w));
      mean += p[j] * dp[j];
    }
    for (size_t j = 0; j < keys.size(); ++j) {
      const int64_t key = keys[j] * c.kv_heads + head / (c.heads / c.kv_heads);
      const double dz = c.scale * p[j] * (dp[j] - mean);
      for (int64_t e = 0; e < d; ++e) {
        g.dq[row * d + e] += dz * k[key * d + e];
        g.dk[key * d + e] += dz * q[row * d + e];
      }
    }
  });
  return g;
}

}  // namespace meshfold::reference
