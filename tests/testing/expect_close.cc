#include "tests/testing/expect_close.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

double MaxMagnitude(const std::vector<double>& values) {
  double max = 0;
  for (double value : values) {
    if (std::isfinite(value)) max = std::max(max, std::fabs(value));
  }
  return max;
}

// How far apart two values are; infinite when only one is NaN or infinite.
double Distance(double a, double b) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double distance = std::fabs(a - b);
  return std::isnan(distance) ? HUGE_VAL : distance;
}

}  // namespace

void ExpectClose(const Tensor& actual, const std::vector<double>& expected, double rel_of_max,
                 const std::string& what) {
  const std::vector<double> values = ToVector<double>(actual);
  ASSERT_EQ(values.size(), expected.size()) << what;
  EXPECT_TRUE(GuardIsIntact(actual)) << what << ": written between rows";
  const double scale = MaxMagnitude(expected);
  const double limit = rel_of_max * (scale > 1e-30 ? scale : 1.0);
  size_t worst = 0;
  double worst_distance = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double distance = Distance(values[i], expected[i]);
    if (distance > worst_distance) worst = i, worst_distance = distance;
  }
  if (worst_distance <= limit) return;
  ADD_FAILURE() << what << " " << actual.ToString() << ": element " << worst << " is "
                << values[worst] << ", expected " << expected[worst] << "; off by "
                << worst_distance << ", allowed " << limit << " (largest " << scale << ")";
}

void ExpectClose(const Tensor& actual, const Tensor& expected, double rel_of_max,
                 const std::string& what) {
  EXPECT_EQ(actual.shape(), expected.shape()) << what;
  ExpectClose(actual, ToVector<double>(expected), rel_of_max, what);
}

void ExpectBitEqual(const Tensor& actual, const Tensor& expected, const std::string& what) {
  ASSERT_EQ(actual.shape(), expected.shape()) << what;
  ASSERT_EQ(DTypeName(actual.dtype()), std::string(DTypeName(expected.dtype()))) << what;
  const int64_t size = SizeOf(actual.dtype()), cols = actual.cols();
  for (int64_t row = 0; row < actual.rows(); ++row) {
    const char* a = static_cast<const char*>(actual.raw()) + row * actual.pitch() * size;
    const char* b = static_cast<const char*>(expected.raw()) + row * expected.pitch() * size;
    if (std::memcmp(a, b, cols * size) == 0) continue;
    int64_t col = 0;
    while (std::memcmp(a + col * size, b + col * size, size) == 0) ++col;
    const int64_t i = row * cols + col;
    ADD_FAILURE() << what << " " << actual.ToString() << ": element " << i << " is "
                  << ToVector<double>(actual)[i] << ", expected " << ToVector<double>(expected)[i]
                  << " to the bit";
    return;
  }
}

double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace meshfold::testing
