#include "tests/reference/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Vec;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// Additions and multiplications round once or twice: 2^-24 each. Exponentials are within 2 ulp.
constexpr double kRounding = 2e-7, kExpRounding = 5e-7;

// Shapes that end inside a vector, that are smaller than one, and that feed several threads.
class ElementwiseTest : public ::testing::TestWithParam<Shape> {
 protected:
  using Kernel = std::function<void(Backend&, const Tensor& a, const Tensor& b, const Tensor& out)>;

  Tensor Input(const char* name, Padding padding) const {
    return RandomTensor(name, GetParam(), {.stddev = 3, .padding = padding});
  }

  // Runs a kernel of two inputs into a new output and onto its first input.
  void Expect(const Kernel& kernel, const std::function<Vec(const Vec&, const Vec&)>& reference,
              double tolerance) const {
    ForEachVariant(
        [&](Padding padding) {
          const Tensor a = Input("a", padding), b = Input("b", padding);
          const Tensor out = UnwrittenTensor(GetParam(), DType::kF32, padding);
          kernel(CurrentBackend(), a, b, out);
          kernel(CurrentBackend(), a, b, a);
          return std::vector<Tensor>{out, a};
        },
        [&](const std::vector<Tensor>& out) {
          const Vec a = ToVector<double>(Input("a", Padding::kNone));
          const Vec expected = reference(a, ToVector<double>(Input("b", Padding::kNone)));
          ExpectClose(out[0], expected, tolerance);
          ExpectClose(out[1], expected, tolerance, "in place");
        });
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, ElementwiseTest,
                         ::testing::Values(Shape{0, 5}, Shape{5, 0}, Shape{1, 1}, Shape{7},
                                           Shape{3, 5, 33}, Shape{301, 257}));

TEST_P(ElementwiseTest, Add) {
  Expect([](Backend& cpu, auto& a, auto& b, auto& out) { cpu.Add(a, b, out); },
         [](const Vec& a, const Vec& b) { return reference::Map(a, b, std::plus<>()); }, kRounding);
}

TEST_P(ElementwiseTest, Multiply) {
  Expect([](Backend& cpu, auto& a, auto& b, auto& out) { cpu.Multiply(a, b, out); },
         [](const Vec& a, const Vec& b) { return reference::Map(a, b, std::multiplies<>()); },
         kRounding);
}

TEST_P(ElementwiseTest, Scale) {
  Expect([](Backend& cpu, auto& a, auto&, auto& out) { cpu.Scale(-1.25, a, out); },
         [](const Vec& a, const Vec&) {
           return reference::Map(a, [](double x) { return -1.25 * x; });
         },
         kRounding);
}

TEST_P(ElementwiseTest, ScaleByScalar) {
  Expect(
      [](Backend& cpu, auto& a, auto&, auto& out) {
        cpu.ScaleByScalar(a, MakeTensor({0.75}, {1}), out);
      },
      [](const Vec& a, const Vec&) { return reference::Map(a, [](double x) { return 0.75 * x; }); },
      kRounding);
}

TEST_P(ElementwiseTest, Sigmoid) {
  Expect([](Backend& cpu, auto& a, auto&, auto& out) { cpu.Sigmoid(a, out); },
         [](const Vec& a, const Vec&) { return reference::Map(a, reference::SigmoidOf); },
         kExpRounding);
}

TEST_P(ElementwiseTest, SigmoidBackward) {
  Expect([](Backend& cpu, auto& y, auto& dy, auto& dx) { cpu.SigmoidBackward(y, dy, dx); },
         reference::SigmoidBackward, kRounding);
}

TEST_P(ElementwiseTest, Clamp) {
  Expect([](Backend& cpu, auto& a, auto&, auto& out) { cpu.Clamp(a, -1.5, 2, out); },
         [](const Vec& a, const Vec&) { return reference::Clamp(a, -1.5, 2); }, 0);
}

TEST_P(ElementwiseTest, ClampBackward) {
  Expect([](Backend& cpu, auto& x, auto& dy, auto& dx) { cpu.ClampBackward(x, -1.5, 2, dy, dx); },
         [](const Vec& x, const Vec& dy) { return reference::ClampBackward(x, -1.5, 2, dy); }, 0);
}

TEST_P(ElementwiseTest, Axpy) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor x = Input("x", padding), y = Input("y", padding);
        CurrentBackend().Axpy(0.3, x, y);
        return std::vector<Tensor>{y};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec x = ToVector<double>(Input("x", Padding::kNone));
        const Vec y = ToVector<double>(Input("y", Padding::kNone));
        ExpectClose(out[0], reference::Map(x, y, [](double a, double b) { return b + 0.3 * a; }),
                    kRounding);
      });
}

TEST_P(ElementwiseTest, AddRowVector) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const auto bias = [&] { return RandomTensor("bias", {GetParam().cols()}, {.dtype = dtype}); };
    Expect([&](Backend& cpu, auto& a, auto&, auto& out) { cpu.AddRowVector(a, bias(), out); },
           [&](const Vec& a, const Vec&) {
             return reference::AddRowVector(a, ToVector<double>(bias()));
           },
           kRounding);
  }
}

TEST_P(ElementwiseTest, SwiGluAndBackward) {
  const Shape shape = {GetParam().rows(), GetParam().cols()};
  const Shape wide = {shape.rows(), 2 * shape.cols()};
  const auto gate_up = [&](Padding padding) {
    return RandomTensor("gate_up", wide, {.stddev = 3, .padding = padding});
  };
  const auto dy = [&](Padding padding) { return RandomTensor("dy", shape, {.padding = padding}); };
  ForEachVariant(
      [&](Padding padding) {
        const Tensor x = gate_up(padding), dx = UnwrittenTensor(wide, DType::kF32, padding);
        const Tensor y = UnwrittenTensor(shape, DType::kF32, padding);
        CurrentBackend().SwiGlu(x, y);
        CurrentBackend().SwiGluBackward(x, dy(padding), dx);
        CurrentBackend().SwiGluBackward(x, dy(padding), x);
        return std::vector<Tensor>{y, dx, x};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec x = ToVector<double>(gate_up(Padding::kNone));
        const Vec dx =
            reference::SwiGluBackward(x, ToVector<double>(dy(Padding::kNone)), shape.cols());
        ExpectClose(out[0], reference::SwiGlu(x, shape.cols()), kExpRounding, "y");
        ExpectClose(out[1], dx, kExpRounding, "dx");
        ExpectClose(out[2], dx, kExpRounding, "dx in place");
      });
}

TEST(ElementwiseEdgeTest, SigmoidAndSwiGluSaturateWithoutOverflow) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const Vec x = {-kInf, -1000, -104, -88, 0, 88, 104, 1000, kInf};
  ForEachVariant(
      [&](Padding padding) {
        const Tensor y = UnwrittenTensor({9}, DType::kF32, padding);
        CurrentBackend().Sigmoid(MakeTensor(x, {9}), y);
        const Tensor gate_up = MakeTensor({-1000, 1000, -104, 2, 3, 5}, {1, 6});
        const Tensor product = UnwrittenTensor({1, 3});
        CurrentBackend().SwiGlu(gate_up, product);
        return std::vector<Tensor>{y, product};
      },
      [&](const std::vector<Tensor>& out) {
        ExpectClose(out[0], {0, 0, 0, 0, 0.5, 1, 1, 1, 1}, kExpRounding);
        ExpectClose(out[1], {0, 3000, 0}, kExpRounding);
      });
}

TEST(ElementwiseEdgeTest, NaNStaysVisible) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  ForEachVariant(
      [&](Padding) {
        const Tensor x = MakeTensor({nan, 1}, {2});
        std::vector<Tensor> outputs;
        for (int i = 0; i < 3; ++i) outputs.push_back(UnwrittenTensor({2}));
        CurrentBackend().Sigmoid(x, outputs[0]);
        CurrentBackend().Clamp(x, -1, 1, outputs[1]);
        CurrentBackend().SwiGlu(MakeTensor({nan, 2, 1, 3}, {1, 4}), outputs[2]);
        return outputs;
      },
      [&](const std::vector<Tensor>& out) {
        for (const Tensor& tensor : out) {
          EXPECT_TRUE(std::isnan(tensor.data<float>()[0]));
          EXPECT_FALSE(std::isnan(tensor.data<float>()[1]));
        }
      });
}

TEST(ElementwiseEdgeTest, ClampBackwardPassesBorders) {
  ScopedTestContext context;
  const Tensor dx = UnwrittenTensor({4});
  context.backend().ClampBackward(MakeTensor({-1, 2, -1.001, 2.001}, {4}), -1, 2,
                                  MakeTensor({5, 6, 7, 8}, {4}), dx);
  ExpectClose(dx, Vec{5, 6, 0, 0}, 0);
}

}  // namespace
}  // namespace meshfold
