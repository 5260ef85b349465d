// The loss head against f64.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/cross_entropy.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using reference::Vec;

// A GEMM, an exp and a GEMM in f32, relative to the largest element.
constexpr double kTolerance = 5e-6;

struct LossCase {
  int64_t tokens, dim;
  int32_t vocab;
  DType dtype = DType::kF32;
};

class OpsLossTest : public ::testing::Test {
 protected:
  // scale * cross-entropy, and factor times its gradients.
  static Expected Reference(const Tensor& x, const Tensor& w, const Tensor& targets, double scale,
                            double factor) {
    reference::LinearCrossEntropyResult result =
        reference::LinearCrossEntropy(F64(x), F64(w), ToVector<int32_t>(targets), x.cols(), scale);
    for (Vec* grad : {&result.dx, &result.dweight}) {
      for (double& value : *grad) value *= factor;
    }
    return {{result.loss}, {result.dx, result.dweight}};
  }

  ScopedTestContext context_;
};

TEST_F(OpsLossTest, LinearCrossEntropy) {
  for (const LossCase& c : std::vector<LossCase>{{1, 1, 2},
                                                 {9, 12, 17},
                                                 {33, 256, 50},
                                                 {7, 5, 512},
                                                 {300, 8, 20},
                                                 {9, 12, 17, DType::kBF16},
                                                 {0, 4, 5}}) {
    Tensor x = Guarded("x", {c.tokens, c.dim}), w = Guarded("w", {c.vocab, c.dim}, c.dtype);
    Tensor targets = RandomIds("targets", {c.tokens}, -2, c.vocab), dy = MakeTensor({-1.5}, {1});
    auto op = [&](const auto& in) {
      return LinearCrossEntropy(in[0], in[1], targets, {.scale = 0.25});
    };
    ExpectOp(op, {x, w}, dy, Reference(x, w, targets, 0.25, -1.5), kTolerance,
             absl::StrCat(c.tokens, " x ", c.dim, " x ", c.vocab, " ", DTypeName(c.dtype)));
  }
}

TEST_F(OpsLossTest, WithoutCountedTargetsAllIsZero) {
  Tensor x = Guarded("x", {3, 4}), w = Guarded("w", {5, 4}), targets = MakeIds({-1, -100, -1}, {3});
  auto op = [&](const auto& in) {
    return LinearCrossEntropy(in[0], in[1], targets, {.scale = 0.25});
  };
  ExpectOp(op, {x, w}, MakeTensor({1}, {1}), {{0.0}, {Vec(12, 0.0), Vec(20, 0.0)}}, 0, "none");
}

TEST_F(OpsLossTest, LogitsAreGivenWhenAsked) {
  Tensor x = Guarded("x", {9, 12}), w = Guarded("w", {17, 12});
  Tensor targets = RandomIds("targets", {9}, -2, 17), logits;
  LinearCrossEntropy(Variable(x), Variable(w), targets, {.logits = &logits});
  ExpectClose(Plain(logits), reference::Linear(F64(x), F64(w), 12, 17), kTolerance);
}

// The gradients lie in saved slots and are scaled in place: a second use of x must not be hurt.
TEST_F(OpsLossTest, GradientsFlowOnWithOtherUsesOfX) {
  Tensor w = RandomTensor("w", {17, 12}), targets = RandomIds("targets", {9}, 0, 17);
  Variable x = Variable::Leaf(RandomTensor("x", {9, 12}));
  Variable h = Scale(x, 1.0);
  Tensor dh = RandomTensor("dh", {9, 12});
  Variable loss = LinearCrossEntropy(h, Variable(w), targets, {.scale = 0.25});
  Backward({Root{Scale(loss, 2.0), MakeTensor({1}, {1})}, Root{Scale(h, 1.0), dh}}, {});
  Vec dx = Reference(x.data(), w, targets, 0.25, 2.0).grads[0];
  for (size_t i = 0; i < dx.size(); ++i) dx[i] += F64(dh)[i];
  ExpectClose(x.grad().tensor(), dx, kTolerance);
}

TEST_F(OpsLossTest, PassesTheGradientCheck) {
  Tensor x = RandomTensor("x", {6, 4}), w = RandomTensor("w", {5, 4});
  Tensor targets = MakeIds({0, 4, -1, 2, 2, 1}, {6});
  auto op = [&](absl::Span<const Variable> in) {
    return LinearCrossEntropy(in[0], in[1], targets, {.scale = 0.5});
  };
  EXPECT_EQ(CheckGradients(op, {x, w}), absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
