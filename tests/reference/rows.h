// Gathers, scatters and small sums in f64.
#pragma once

#include "tests/reference/vec.h"

namespace meshfold::reference {

using Ids = std::vector<int32_t>;

inline Vec GatherRows(const Vec& x, int64_t cols, const Ids& index, int64_t divisor) {
  Vec out;
  for (int32_t i : index) {
    const Vec row = i < 0 ? Vec(cols) : Row(x, i / divisor, cols);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// out[t] = sum over k of y[token_rows[t, k]], negative entries skipped.
inline Vec CombineRows(const Vec& y, int64_t cols, const Ids& token_rows, int64_t top_k) {
  Vec out(static_cast<int64_t>(token_rows.size()) / top_k * cols);
  for (size_t i = 0; i < token_rows.size(); ++i) {
    if (token_rows[i] < 0) continue;
    for (int64_t c = 0; c < cols; ++c) {
      out[static_cast<int64_t>(i) / top_k * cols + c] += y[token_rows[i] * cols + c];
    }
  }
  return out;
}

// table[ids[t]] += dy[t].
inline Vec AddEmbeddingGradient(Vec table, int64_t cols, const Ids& ids, const Vec& dy) {
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < cols; ++c) table[ids[t] * cols + c] += dy[t * cols + c];
  }
  return table;
}

inline Vec GatherElements(const Vec& x, const Ids& index) {
  Vec out;
  for (int32_t i : index) out.push_back(i < 0 ? 0 : x[i]);
  return out;
}

inline Vec ScatterElements(const Vec& x, const Ids& index, int64_t size) {
  Vec out(size);
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] >= 0) out[index[i]] = x[i];
  }
  return out;
}

inline Vec GatherCols(const Vec& scores, int64_t cols, const Ids& ids, int64_t top_k) {
  Vec out;
  for (size_t i = 0; i < ids.size(); ++i) {
    out.push_back(scores[static_cast<int64_t>(i) / top_k * cols + ids[i]]);
  }
  return out;
}

inline Vec GatherColsBackward(const Vec& dout, int64_t cols, const Ids& ids, int64_t top_k) {
  Vec dscores(static_cast<int64_t>(ids.size()) / top_k * cols);
  for (size_t i = 0; i < ids.size(); ++i) {
    dscores[static_cast<int64_t>(i) / top_k * cols + ids[i]] += dout[i];
  }
  return dscores;
}

// scale w / (rowsum(w) + eps).
inline Vec NormalizeRows(const Vec& w, int64_t cols, double eps, double scale) {
  Vec out(w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    double sum = eps;
    for (double v : Row(w, i / cols, cols)) sum += v;
    out[i] = scale * w[i] / sum;
  }
  return out;
}

inline Vec NormalizeRowsBackward(const Vec& w, int64_t cols, double eps, double scale,
                                 const Vec& dout) {
  Vec dw(w.size());
  for (int64_t row = 0; row < NumRows(w, cols); ++row) {
    double sum = eps, dot = 0;
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      sum += w[i];
      dot += dout[i] * w[i];
    }
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) {
      dw[i] = scale * (dout[i] / sum - dot / (sum * sum));
    }
  }
  return dw;
}

inline double WeightedSum(const Vec& x, const Vec& coefficients, const std::vector<int>& valid) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (valid[i / coefficients.size()]) sum += coefficients[i % coefficients.size()] * x[i];
  }
  return sum;
}

}  // namespace meshfold::reference
