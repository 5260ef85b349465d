// Elementwise functions and column sums in f64.
#pragma once

#include <cmath>

#include "tests/reference/vec.h"

namespace meshfold::reference {

inline double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
inline double SiluOf(double x) { return x * SigmoidOf(x); }
inline double SiluSlope(double x) {
  const double s = SigmoidOf(x);
  return s * (1 + x * (1 - s));
}

// dx from the output y of the sigmoid.
inline Vec SigmoidBackward(const Vec& y, const Vec& dy) {
  return Map(y, dy, [](double s, double d) { return d * s * (1 - s); });
}

inline Vec Clamp(const Vec& x, double low, double high) {
  return Map(x, [&](double v) { return v < low ? low : v > high ? high : v; });
}

inline Vec ClampBackward(const Vec& x, double low, double high, const Vec& dy) {
  return Map(x, dy, [&](double v, double d) { return v >= low && v <= high ? d : 0; });
}

inline Vec AddRowVector(const Vec& x, const Vec& bias) {
  Vec out = x;
  for (size_t i = 0; i < x.size(); ++i) out[i] += bias[i % bias.size()];
  return out;
}

inline Vec ColumnSum(const Vec& x, int64_t cols) {
  Vec out(cols);
  for (size_t i = 0; i < x.size(); ++i) out[i % cols] += x[i];
  return out;
}

// gate_up: rows of 2 hidden elements, gate first. out = silu(gate) up.
inline Vec SwiGlu(const Vec& gate_up, int64_t hidden) {
  Vec out;
  for (int64_t row = 0; row < NumRows(gate_up, 2 * hidden); ++row) {
    const Vec x = Row(gate_up, row, 2 * hidden);
    for (int64_t i = 0; i < hidden; ++i) out.push_back(SiluOf(x[i]) * x[hidden + i]);
  }
  return out;
}

inline Vec SwiGluBackward(const Vec& gate_up, const Vec& dy, int64_t hidden) {
  Vec out(gate_up.size());
  for (int64_t row = 0; row < NumRows(gate_up, 2 * hidden); ++row) {
    const Vec x = Row(gate_up, row, 2 * hidden), d = Row(dy, row, hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      out[row * 2 * hidden + i] = d[i] * x[hidden + i] * SiluSlope(x[i]);
      out[row * 2 * hidden + hidden + i] = d[i] * SiluOf(x[i]);
    }
  }
  return out;
}

}  // namespace meshfold::reference
