#include "tests/testing/finite_difference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/rng.h"

namespace meshfold::testing {
namespace {

// (f(x + h direction) - f(x - h direction)) / 2h.
double CentralDifference(const ScalarFunction& f, const std::vector<double>& x,
                         const std::vector<double>& direction, double h) {
  std::vector<double> above = x, below = x;
  for (size_t i = 0; i < x.size(); ++i) {
    above[i] += h * direction[i];
    below[i] -= h * direction[i];
  }
  return (f(above) - f(below)) / (2 * h);
}

}  // namespace

void ExpectGradient(const ScalarFunction& f, const std::vector<double>& x,
                    const std::vector<double>& gradient, const std::string& what,
                    double tolerance) {
  ASSERT_EQ(x.size(), gradient.size()) << what;
  double scale = 0;
  for (double g : gradient) scale = std::max(scale, std::fabs(g));
  if (scale < 1e-30) scale = 1;
  const size_t step = std::max<size_t>(1, x.size() / 20);
  for (size_t i = 0; i < x.size(); i += step) {
    std::vector<double> direction(x.size());
    direction[i] = 1;
    const double h = 1e-5 * std::max(1.0, std::fabs(x[i]));
    EXPECT_NEAR(CentralDifference(f, x, direction, h), gradient[i], tolerance * scale)
        << what << " coordinate " << i;
  }
  std::vector<double> direction(x.size());
  const RngKey key = MakeRngKey(1, "direction");
  for (size_t i = 0; i < x.size(); ++i) direction[i] = NormalAt(key, i);
  const double length = std::sqrt(std::max(1.0, static_cast<double>(x.size())));
  EXPECT_NEAR(CentralDifference(f, x, direction, 1e-5), Dot(gradient, direction),
              tolerance * scale * length)
      << what << " along a random direction";
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) sum += a[i] * b[i];
  return sum;
}

std::vector<double> SineSequence(int64_t n, double a, double b, double m) {
  std::vector<double> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = m * std::sin(a * static_cast<double>(i) + b);
  return values;
}

double CosineChecksum(const std::vector<double>& x) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * std::cos(0.5 * static_cast<double>(i));
  return sum;
}

}  // namespace meshfold::testing
