// What all references share: vectors of f64 in row-major order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace meshfold::reference {

using Vec = std::vector<double>;

// Applies f(x[i]) or f(a[i], b[i]) to every element.
template <typename F>
Vec Map(const Vec& x, F&& f) {
  Vec out;
  for (double value : x) out.push_back(f(value));
  return out;
}
template <typename F>
Vec Map(const Vec& a, const Vec& b, F&& f) {
  Vec out;
  for (size_t i = 0; i < a.size(); ++i) out.push_back(f(a[i], b[i]));
  return out;
}

// Row `row` of rows of `cols` elements.
inline Vec Row(const Vec& x, int64_t row, int64_t cols) {
  return Vec(x.begin() + row * cols, x.begin() + (row + 1) * cols);
}

inline int64_t NumRows(const Vec& x, int64_t cols) {
  return cols == 0 ? 0 : static_cast<int64_t>(x.size()) / cols;
}

}  // namespace meshfold::reference
