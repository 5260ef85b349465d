// RMSNorm, softmax and log-sum-exp in f64, forward and backward.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/reference/vec.h"

namespace meshfold::reference {

struct RmsNormConfig {
  int64_t cols = 1;
  int64_t groups = 1;  // equal slices of a row, each normed alone with the same weight
  double eps = 1e-6;
  bool zero_centered = false;
};

struct RmsNormResult {
  Vec y, rstd;
};

inline double WeightOf(const RmsNormConfig& config, double w) {
  return config.zero_centered ? 1 + w : w;
}

inline RmsNormResult RmsNorm(const Vec& x, const Vec& weight, const RmsNormConfig& config) {
  RmsNormResult result;
  const int64_t n = config.cols / config.groups;
  for (int64_t slice = 0; slice < NumRows(x, n); ++slice) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x[slice * n + i] * x[slice * n + i];
    const double rstd = 1 / std::sqrt(squares / n + config.eps);
    result.rstd.push_back(rstd);
    for (int64_t i = 0; i < n; ++i) {
      result.y.push_back(x[slice * n + i] * rstd * WeightOf(config, weight[i]));
    }
  }
  return result;
}

struct RmsNormGradients {
  Vec dx, dweight;
};

inline RmsNormGradients RmsNormBackward(const Vec& x, const Vec& weight, const Vec& dy,
                                        const RmsNormConfig& config) {
  const int64_t n = config.cols / config.groups;
  const Vec rstd = RmsNorm(x, weight, config).rstd;
  RmsNormGradients result{Vec(x.size()), Vec(n)};
  for (int64_t slice = 0; slice < NumRows(x, n); ++slice) {
    const double r = rstd[slice];
    double mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = slice * n + i;
      mean += dy[at] * WeightOf(config, weight[i]) * x[at] * r / n;
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = slice * n + i;
      result.dx[at] = r * (dy[at] * WeightOf(config, weight[i]) - x[at] * r * mean);
      result.dweight[i] += dy[at] * x[at] * r;
    }
  }
  return result;
}

// Log-sum-exp of each row.
inline Vec LogSumExp(const Vec& x, int64_t cols) {
  Vec out;
  for (int64_t row = 0; row < NumRows(x, cols); ++row) {
    const Vec z = Row(x, row, cols);
    const double max = *std::max_element(z.begin(), z.end());
    double sum = 0;
    for (double v : z) sum += std::exp(v - max);
    out.push_back(std::isinf(max) ? max : max + std::log(sum));
  }
  return out;
}

inline Vec Softmax(const Vec& x, int64_t cols) {
  const Vec lse = LogSumExp(x, cols);
  Vec out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = std::exp(x[i] - lse[i / cols]);
  return out;
}

inline Vec SoftmaxBackward(const Vec& y, const Vec& dy, int64_t cols) {
  Vec dx(y.size());
  for (int64_t row = 0; row < NumRows(y, cols); ++row) {
    double dot = 0;
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) dot += y[i] * dy[i];
    for (int64_t i = row * cols; i < (row + 1) * cols; ++i) dx[i] = y[i] * (dy[i] - dot);
  }
  return dx;
}

// sum over rows with valid[row] != 0 of lse^2, and its gradient.
inline double SquaredLogSumExp(const Vec& z, int64_t cols, const std::vector<int>& valid) {
  const Vec lse = LogSumExp(z, cols);
  double sum = 0;
  for (size_t row = 0; row < lse.size(); ++row) sum += valid[row] ? lse[row] * lse[row] : 0;
  return sum;
}

inline Vec SquaredLogSumExpBackward(const Vec& z, int64_t cols, const std::vector<int>& valid) {
  const Vec lse = LogSumExp(z, cols), p = Softmax(z, cols);
  Vec dz(z.size());
  for (size_t i = 0; i < z.size(); ++i) {
    if (valid[i / cols]) dz[i] = 2 * lse[i / cols] * p[i];
  }
  return dz;
}

}  // namespace meshfold::reference
