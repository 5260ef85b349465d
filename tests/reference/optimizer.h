// Update rules in f64, one element after the other.
#pragma once

#include <cmath>

#include "tests/reference/vec.h"

namespace meshfold::reference {

struct AdamWConfig {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
};

struct AdamWState {
  Vec param, m, v;
};

// One step, `step` = 1 for the first. As torch.optim.AdamW.
inline AdamWState AdamW(AdamWState s, const Vec& grad, const AdamWConfig& config, int64_t step) {
  const double correction1 = 1 - std::pow(config.beta1, step);
  const double correction2 = 1 - std::pow(config.beta2, step);
  for (size_t i = 0; i < grad.size(); ++i) {
    s.param[i] -= config.lr * config.weight_decay * s.param[i];
    s.m[i] = config.beta1 * s.m[i] + (1 - config.beta1) * grad[i];
    s.v[i] = config.beta2 * s.v[i] + (1 - config.beta2) * grad[i] * grad[i];
    const double mhat = s.m[i] / correction1, vhat = s.v[i] / correction2;
    s.param[i] -= config.lr * mhat / (std::sqrt(vhat) + config.eps);
  }
  return s;
}

struct SgdState {
  Vec param, momentum_buffer;
};

// As torch.optim.SGD with decoupled decay; the buffer starts at zero.
inline SgdState Sgd(SgdState s, const Vec& grad, double lr, double momentum, double weight_decay) {
  for (size_t i = 0; i < grad.size(); ++i) {
    s.param[i] -= lr * weight_decay * s.param[i];
    s.momentum_buffer[i] = momentum * s.momentum_buffer[i] + grad[i];
    s.param[i] -= lr * s.momentum_buffer[i];
  }
  return s;
}

// Sum of squares of each run of 1024 elements.
inline Vec BlockSquareSums(const Vec& x) {
  Vec sums((x.size() + 1023) / 1024);
  for (size_t i = 0; i < x.size(); ++i) sums[i / 1024] += x[i] * x[i];
  return sums;
}

}  // namespace meshfold::reference
