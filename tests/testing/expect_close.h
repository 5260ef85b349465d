// Comparison of tensors with f64 references and with each other.
#pragma once

#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace meshfold::testing {

// A gtest failure, naming the worst element, unless every element of `actual` is within
// `rel_of_max` times the largest magnitude in `expected` (and that much absolutely when all of it
// is below 1e-30). NaN matches NaN, infinities match themselves. Also fails when the guard between
// rows was touched. `what` leads the message.
void ExpectClose(const Tensor& actual, const std::vector<double>& expected, double rel_of_max,
                 const std::string& what = "");
void ExpectClose(const Tensor& actual, const Tensor& expected, double rel_of_max,
                 const std::string& what = "");

// A gtest failure unless both have the same shape, dtype and logical elements, bit for bit.
void ExpectBitEqual(const Tensor& actual, const Tensor& expected, const std::string& what = "");

// ||a - b|| / ||b||, 0 for two zero vectors.
double RelativeError(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace meshfold::testing
