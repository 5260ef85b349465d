// Cross-entropy of a linear head in f64.
#pragma once

#include <cmath>
#include <vector>

#include "tests/reference/linear.h"

namespace meshfold::reference {

struct CrossEntropyResult {
  double loss = 0;
  Vec dlogits;
};

// scale times the sum over targets >= 0 of lse(z_t) - z_t[target].
inline CrossEntropyResult CrossEntropy(const Vec& logits, const std::vector<int32_t>& targets,
                                       int64_t vocab, double scale) {
  CrossEntropyResult result{0, Vec(logits.size())};
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] < 0) continue;
    const Vec z = Row(logits, static_cast<int64_t>(t), vocab);
    double max = z[0], sum = 0;
    for (double value : z) max = std::max(max, value);
    for (double value : z) sum += std::exp(value - max);
    const double lse = max + std::log(sum);
    result.loss += scale * (lse - z[targets[t]]);
    for (int64_t c = 0; c < vocab; ++c) {
      const double onehot = c == targets[t] ? 1 : 0;
      result.dlogits[t * vocab + c] = scale * (std::exp(z[c] - lse) - onehot);
    }
  }
  return result;
}

struct LinearCrossEntropyResult {
  double loss = 0;
  Vec logits, dx, dweight;
};

inline LinearCrossEntropyResult LinearCrossEntropy(const Vec& x, const Vec& weight,
                                                   const std::vector<int32_t>& targets, int64_t dim,
                                                   double scale) {
  const int64_t vocab = NumRows(weight, dim);
  const Vec logits = Linear(x, weight, dim, vocab);
  const CrossEntropyResult loss = CrossEntropy(logits, targets, vocab, scale);
  const LinearGradients gradients = LinearBackward(x, weight, loss.dlogits, dim, vocab);
  return {loss.loss, logits, gradients.dx, gradients.dw};
}

}  // namespace meshfold::reference
