// Elementwise ops against f64.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/elementwise.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using Inputs = absl::Span<const Variable>;
using reference::Map;
using reference::Vec;

// A few roundings of f32 (2^-24 each), relative to the largest element; exp is good to 1e-6.
constexpr double kRounding = 5e-7, kExp = 3e-6;

class OpsMathTest : public ::testing::Test {
 protected:
  // Runs `check` for every shape with x, y and dy of that shape.
  void ForShapes(const std::function<void(const Tensor& x, const Tensor& y, const Tensor& dy,
                                          const std::string& what)>& check) {
    for (const Shape& shape : MatrixShapes()) {
      check(Guarded("x", shape), Guarded("y", shape), Guarded("dy", shape), shape.ToString());
    }
  }

  ScopedTestContext context_;
};

TEST_F(OpsMathTest, Add) {
  ForShapes([](const Tensor& x, const Tensor& y, const Tensor& dy, const std::string& what) {
    ExpectOp([](const auto& in) { return Add(in[0], in[1]); }, {x, y}, dy,
             {Map(F64(x), F64(y), std::plus<>()), {F64(dy), F64(dy)}}, kRounding, what);
  });
}

TEST_F(OpsMathTest, Multiply) {
  auto times = std::multiplies<>();
  ForShapes([&](const Tensor& x, const Tensor& y, const Tensor& dy, const std::string& what) {
    ExpectOp(
        [](const auto& in) { return Multiply(in[0], in[1]); }, {x, y}, dy,
        {Map(F64(x), F64(y), times), {Map(F64(dy), F64(y), times), Map(F64(dy), F64(x), times)}},
        kRounding, what);
  });
}

TEST_F(OpsMathTest, Scale) {
  auto scaled = [](double v) { return -1.75 * v; };
  ForShapes([&](const Tensor& x, const Tensor&, const Tensor& dy, const std::string& what) {
    ExpectOp([](const auto& in) { return Scale(in[0], -1.75); }, {x}, dy,
             {Map(F64(x), scaled), {Map(F64(dy), scaled)}}, kRounding, what);
  });
}

TEST_F(OpsMathTest, Sigmoid) {
  ForShapes([](const Tensor& x, const Tensor&, const Tensor& dy, const std::string& what) {
    Vec y = Map(F64(x), reference::SigmoidOf);
    ExpectOp([](const auto& in) { return Sigmoid(in[0]); }, {x}, dy,
             {y, {reference::SigmoidBackward(y, F64(dy))}}, kExp, what);
  });
}

TEST_F(OpsMathTest, Clamp) {
  ForShapes([](const Tensor& x, const Tensor&, const Tensor& dy, const std::string& what) {
    ExpectOp([](const auto& in) { return Clamp(in[0], -0.5, 0.75); }, {x}, dy,
             {reference::Clamp(F64(x), -0.5, 0.75),
              {reference::ClampBackward(F64(x), -0.5, 0.75, F64(dy))}},
             kRounding, what);
  });
}

TEST_F(OpsMathTest, ClampPassesGradientsAtItsBorders) {
  Tensor x = MakeTensor({-1, -0.5, 0, 0.75, 2}, {5}), dy = MakeTensor({1, 2, 3, 4, 5}, {5});
  ExpectOp([](const auto& in) { return Clamp(in[0], -0.5, 0.75); }, {x}, dy,
           {{-0.5, -0.5, 0, 0.75, 0.75}, {{0, 2, 3, 4, 0}}}, 0, "borders");
}

TEST_F(OpsMathTest, AddBias) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : MatrixShapes()) {
      Tensor x = Guarded("x", shape), dy = Guarded("dy", shape);
      Tensor bias = Guarded("bias", {shape.cols()}, dtype);
      ExpectOp([](const auto& in) { return AddBias(in[0], in[1]); }, {x, bias}, dy,
               {reference::AddRowVector(F64(x), F64(bias)),
                {F64(dy), reference::ColumnSum(F64(dy), shape.cols())}},
               kRounding, shape.ToString());
    }
  }
}

TEST_F(OpsMathTest, SwiGlu) {
  for (const Shape& shape : MatrixShapes()) {
    int64_t hidden = shape.cols();
    Tensor gate_up = Guarded("gate_up", {shape.rows(), 2 * hidden}), dy = Guarded("dy", shape);
    ExpectOp([](const auto& in) { return SwiGlu(in[0]); }, {gate_up}, dy,
             {reference::SwiGlu(F64(gate_up), hidden),
              {reference::SwiGluBackward(F64(gate_up), F64(dy), hidden)}},
             kExp, shape.ToString());
  }
}

TEST_F(OpsMathTest, SmoothOpsPassTheGradientCheck) {
  Tensor x = RandomTensor("x", {4, 6}), y = RandomTensor("y", {4, 6}), b = RandomTensor("b", {6});
  EXPECT_EQ(CheckGradients([](Inputs in) { return Multiply(in[0], in[1]); }, {x, y}),
            absl::OkStatus());
  EXPECT_EQ(CheckGradients([](Inputs in) { return Sigmoid(in[0]); }, {x}), absl::OkStatus());
  EXPECT_EQ(CheckGradients([](Inputs in) { return SwiGlu(AddBias(in[0], in[1])); }, {x, b}),
            absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
