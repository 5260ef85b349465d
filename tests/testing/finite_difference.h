// Central differences in f64: the judge of every hand-written gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace meshfold::testing {

// A scalar function of one vector.
using ScalarFunction = std::function<double(const std::vector<double>&)>;

// A gtest failure unless `gradient` is the gradient of `f` at `x`: on up to 20 coordinates spread
// evenly and along one random direction, within `tolerance` of the largest gradient element.
void ExpectGradient(const ScalarFunction& f, const std::vector<double>& x,
                    const std::vector<double>& gradient, const std::string& what = "",
                    double tolerance = 1e-7);

// sum of a[i] b[i]: makes a scalar of a vector output, with b as the output's gradient.
double Dot(const std::vector<double>& a, const std::vector<double>& b);

// m sin(a i + b), i = 0 ... n - 1: the inputs of golden values.
std::vector<double> SineSequence(int64_t n, double a, double b, double m = 1);

// sum of x[i] cos(i / 2): the checksum of golden values.
double CosineChecksum(const std::vector<double>& x);

}  // namespace meshfold::testing
