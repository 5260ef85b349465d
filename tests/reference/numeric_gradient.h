// The whole gradient of an f64 function by central differences: the reference of composed layers.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/reference/vec.h"

namespace meshfold::reference {

// Good to about 1e-9 of f's values for a smooth f with values of order 1: h^2 truncation against
// rounding / h.
inline Vec NumericGradient(const std::function<double(const Vec&)>& f, Vec x) {
  Vec gradient;
  for (double& value : x) {
    const double at = value, h = 1e-5 * std::max(1.0, std::fabs(at));
    value = at + h;
    const double above = f(x);
    value = at - h;
    gradient.push_back((above - f(x)) / (2 * h));
    value = at;
  }
  return gradient;
}

}  // namespace meshfold::reference
