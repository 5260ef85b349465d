// SwiGLU experts over rows sorted by expert in f64, one row at a time.
#pragma once

#include <cmath>
#include <vector>

#include "tests/reference/linear.h"

namespace meshfold::reference {

// Expert of row r is the group whose interval holds r.
struct ExpertTensors {
  Vec x;                           // [R, D]
  std::vector<int64_t> offsets;    // of the groups
  std::vector<Vec> gate_up, down;  // per group [2F, D] and [D, F]
  Vec row_weights;                 // [R], or empty: all ones
  int64_t dim = 1, features = 1;
};

struct ExpertsResult {
  Vec hidden, y;  // [R, 2F], [R, D]
};

inline double Silu(double g) { return g / (1 + std::exp(-g)); }
inline double SiluSlope(double g) {
  const double sigma = 1 / (1 + std::exp(-g));
  return sigma * (1 + g * (1 - sigma));
}

inline double RowWeight(const ExpertTensors& t, int64_t r) {
  return t.row_weights.empty() ? 1 : t.row_weights[r];
}

// silu(gate) up of one row of hidden values.
inline Vec Activation(const Vec& hidden, int64_t features) {
  Vec a;
  for (int64_t f = 0; f < features; ++f) a.push_back(Silu(hidden[f]) * hidden[features + f]);
  return a;
}

template <typename F>
void ForEachExpertRow(const ExpertTensors& t, F&& visit) {
  for (size_t g = 0; g + 1 < t.offsets.size(); ++g) {
    for (int64_t r = t.offsets[g]; r < t.offsets[g + 1]; ++r) visit(g, r);
  }
}

inline ExpertsResult Experts(const ExpertTensors& t) {
  ExpertsResult result;
  ForEachExpertRow(t, [&](size_t g, int64_t r) {
    const Vec hidden = Linear(Row(t.x, r, t.dim), t.gate_up[g], t.dim, 2 * t.features);
    Vec y = Linear(Activation(hidden, t.features), t.down[g], t.features, t.dim);
    for (double& value : y) value *= RowWeight(t, r);
    result.hidden.insert(result.hidden.end(), hidden.begin(), hidden.end());
    result.y.insert(result.y.end(), y.begin(), y.end());
  });
  return result;
}

struct ExpertsGradients {
  Vec dx, drow_weights, dhidden;
  std::vector<Vec> dgate_up, ddown;
};

inline ExpertsGradients ExpertsBackward(const ExpertTensors& t, const Vec& dy) {
  ExpertsGradients out;
  for (const Vec& w : t.gate_up) out.dgate_up.emplace_back(w.size());
  for (const Vec& w : t.down) out.ddown.emplace_back(w.size());
  const int64_t d = t.dim, n = t.features;
  ForEachExpertRow(t, [&](size_t g, int64_t r) {
    const Vec x = Row(t.x, r, d), row_dy = Row(dy, r, d);
    const Vec hidden = Linear(x, t.gate_up[g], d, 2 * n), a = Activation(hidden, n);
    const Vec s = MatMul(row_dy, t.down[g], 1, d, n);
    double dweight = 0;
    Vec dhidden(2 * n);
    for (int64_t f = 0; f < n; ++f) {
      const double da = RowWeight(t, r) * s[f];
      dweight += s[f] * a[f];
      dhidden[f] = da * hidden[n + f] * SiluSlope(hidden[f]);
      dhidden[n + f] = da * Silu(hidden[f]);
      for (int64_t e = 0; e < d; ++e) {
        out.ddown[g][e * n + f] += row_dy[e] * RowWeight(t, r) * a[f];
      }
    }
    out.drow_weights.push_back(dweight);
    const Vec dx = MatMul(dhidden, t.gate_up[g], 1, 2 * n, d);
    out.dx.insert(out.dx.end(), dx.begin(), dx.end());
    out.dhidden.insert(out.dhidden.end(), dhidden.begin(), dhidden.end());
    for (int64_t h = 0; h < 2 * n; ++h) {
      for (int64_t e = 0; e < d; ++e) out.dgate_up[g][h * d + e] += dhidden[h] * x[e];
    }
  });
  return out;
}

}  // namespace meshfold::reference
