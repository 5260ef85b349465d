// Matrix products and linear layers in f64.
#pragma once

#include "tests/reference/vec.h"

namespace meshfold::reference {

// a [m, k] times b [k, n].
inline Vec MatMul(const Vec& a, const Vec& b, int64_t m, int64_t k, int64_t n) {
  Vec out(static_cast<size_t>(m * n));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) out[i * n + j] += a[i * k + l] * b[l * n + j];
    }
  }
  return out;
}

// a [rows, cols] -> [cols, rows].
inline Vec Transposed(const Vec& a, int64_t rows, int64_t cols) {
  Vec out(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) out[j * rows + i] = a[i * cols + j];
  }
  return out;
}

// y [T, O] = x [T, I] w^T, w [O, I].
inline Vec Linear(const Vec& x, const Vec& w, int64_t in, int64_t out) {
  return MatMul(x, Transposed(w, out, in), NumRows(x, in), in, out);
}

struct LinearGradients {
  Vec dx, dw;
};

inline LinearGradients LinearBackward(const Vec& x, const Vec& w, const Vec& dy, int64_t in,
                                      int64_t out) {
  const int64_t rows = NumRows(x, in);
  return {MatMul(dy, w, rows, out, in), MatMul(Transposed(dy, rows, out), x, out, rows, in)};
}

}  // namespace meshfold::reference
