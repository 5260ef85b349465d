// Norms and softmax against f64.
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/norm_softmax.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using Inputs = absl::Span<const Variable>;
using reference::Map;
using reference::RmsNormConfig;
using reference::RmsNormGradients;
using reference::Vec;

// Sums over up to 512 columns or 130 rows in f32, relative to the largest element.
constexpr double kSums = 3e-6;

class OpsNormTest : public ::testing::Test {
 protected:
  static Vec Sum(const Vec& a, const Vec& b) { return Map(a, b, std::plus<>()); }

  ScopedTestContext context_;
};

struct NormCase {
  Shape shape;
  RmsNormOptions options;
  DType dtype = DType::kF32;
  RmsNormConfig config() const {
    return {shape.cols(), options.groups, options.eps, options.zero_centered};
  }
  std::string what() const {
    return absl::StrCat(shape.ToString(), " in ", options.groups, " groups, ", DTypeName(dtype),
                        options.zero_centered ? ", zero-centred" : "");
  }
};

std::vector<NormCase> NormCases() {
  std::vector<NormCase> cases;
  // A single column without eps has gradient zero, by cancellation: no relative comparison.
  for (const Shape& shape : MatrixShapes()) {
    cases.push_back({shape, {.eps = shape.cols() == 1 ? 0.5 : 1e-5}});
    cases.push_back({shape, {.eps = 0.1, .zero_centered = true}});
  }
  cases.push_back({{6, 24}, {.groups = 4}});
  cases.push_back({{3, 512}, {.groups = 2}});
  cases.push_back({{5, 32}, {}, DType::kBF16});
  cases.push_back({{5, 48}, {.groups = 3, .zero_centered = true}, DType::kF16});
  return cases;
}

TEST_F(OpsNormTest, RmsNorm) {
  for (const NormCase& c : NormCases()) {
    Tensor x = Guarded("x", c.shape), dy = Guarded("dy", c.shape);
    Tensor w = Guarded("w", {c.shape.cols() / c.options.groups}, c.dtype);
    RmsNormGradients grads = reference::RmsNormBackward(F64(x), F64(w), F64(dy), c.config());
    ExpectOp([&](const auto& in) { return RmsNorm(in[0], in[1], c.options); }, {x, w}, dy,
             {reference::RmsNorm(F64(x), F64(w), c.config()).y, {grads.dx, grads.dweight}}, kSums,
             c.what());
  }
}

TEST_F(OpsNormTest, TheNormOfAddRmsNorm) {
  for (const NormCase& c : NormCases()) {
    Tensor x = Guarded("x", c.shape), r = Guarded("r", c.shape), dy = Guarded("dy", c.shape);
    Tensor w = Guarded("w", {c.shape.cols() / c.options.groups}, c.dtype);
    Vec sum = Sum(F64(x), F64(r));
    RmsNormGradients grads = reference::RmsNormBackward(sum, F64(w), F64(dy), c.config());
    ExpectOp([&](const auto& in) { return AddRmsNorm(in[0], in[1], in[2], c.options).second; },
             {x, r, w}, dy,
             {reference::RmsNorm(sum, F64(w), c.config()).y, {grads.dx, grads.dx, grads.dweight}},
             kSums, c.what());
  }
}

TEST_F(OpsNormTest, TheSumOfAddRmsNormAlone) {
  Tensor x = Guarded("x", {4, 256}), r = Guarded("r", {4, 256}), dy = Guarded("dy", {4, 256});
  Tensor w = Guarded("w", {256});
  ExpectOp([](const auto& in) { return AddRmsNorm(in[0], in[1], in[2], {}).first; }, {x, r, w}, dy,
           {Sum(F64(x), F64(r)), {F64(dy), F64(dy), Vec(256, 0.0)}}, kSums, "sum");
}

TEST_F(OpsNormTest, BothOutputsOfAddRmsNorm) {
  Shape shape{5, 24};
  Tensor dsum = Guarded("dsum", shape), dy = Guarded("dy", shape);
  Variable x = Variable::Leaf(Guarded("x", shape)), r = Variable::Leaf(Guarded("r", shape)),
           w = Variable::Leaf(Guarded("w", {24}));
  auto [sum, y] = AddRmsNorm(x, r, w, {});
  Backward({Root{sum, dsum}, Root{y, dy}}, {});
  RmsNormGradients grads = reference::RmsNormBackward(Sum(F64(x.data()), F64(r.data())),
                                                      F64(w.data()), F64(dy), {.cols = 24});
  ExpectClose(x.grad().tensor(), Sum(grads.dx, F64(dsum)), kSums, "dx");
  ExpectClose(r.grad().tensor(), Sum(grads.dx, F64(dsum)), kSums, "dr");
  ExpectClose(w.grad().tensor(), grads.dweight, kSums, "dw");
}

TEST_F(OpsNormTest, Softmax) {
  for (const Shape& shape : MatrixShapes()) {
    Tensor x = Guarded("x", shape), dy = Guarded("dy", shape);
    Vec y = reference::Softmax(F64(x), shape.cols());
    ExpectOp([](const auto& in) { return Softmax(in[0]); }, {x}, dy,
             {y, {reference::SoftmaxBackward(y, F64(dy), shape.cols())}}, kSums, shape.ToString());
  }
}

TEST_F(OpsNormTest, PassTheGradientCheck) {
  Tensor x = RandomTensor("x", {4, 6}), r = RandomTensor("r", {4, 6}), w = RandomTensor("w", {3});
  RmsNormOptions options{.eps = 0.1, .groups = 2};
  auto norm = [&](Inputs in) { return RmsNorm(in[0], in[1], options); };
  EXPECT_EQ(CheckGradients(norm, {x, w}), absl::OkStatus());
  auto both = [&](Inputs in) {
    auto [sum, y] = AddRmsNorm(in[0], in[1], in[2], options);
    return Multiply(sum, y);
  };
  EXPECT_EQ(CheckGradients(both, {x, r, w}), absl::OkStatus());
  EXPECT_EQ(CheckGradients([](Inputs in) { return Softmax(in[0]); }, {x}), absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
