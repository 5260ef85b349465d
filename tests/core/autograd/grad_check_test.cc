#include "core/autograd/grad_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/autograd/ops.h"
#include "core/backend/backend.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using ::testing::HasSubstr;
using Inputs = absl::Span<const Variable>;

class GradCheckTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
  Tensor x_ = RandomTensor("x", {3, 5}), y_ = RandomTensor("y", {3, 5});
};

// x^2 y, with the gradient of element `wrong` of x (or none) multiplied by `factor`.
Variable SquareTimes(const Variable& x, const Variable& y, int64_t wrong, float factor) {
  Tensor square = Tensor::Empty(x.shape()), out = Tensor::Empty(x.shape());
  CurrentBackend().Multiply(x.data(), x.data(), square);
  CurrentBackend().Multiply(square, y.data(), out);
  if (!ShouldRecord({x, y})) return Variable(out);
  Saved saved;
  saved.Input("x", x);
  saved.Input("y", y);
  saved.Activation("square", square);
  return Record("SquareTimes", {out}, {x, y}, std::move(saved), [=](BackwardCall& call) {
    Tensor dx = Tensor::Empty(call.grad_out().shape()), dy = Tensor::Empty(dx.shape());
    CurrentBackend().Multiply(call.saved(0), call.saved(1), dx);
    CurrentBackend().Multiply(dx, call.grad_out(), dx);
    CurrentBackend().Scale(2.0, dx, dx);
    CurrentBackend().Multiply(call.saved(2), call.grad_out(), dy);
    if (wrong >= 0) dx.data<float>()[wrong] *= factor;
    call.Set(0, dx);
    call.Set(1, dy);
  })[0];
}

TEST_F(GradCheckTest, RightGradientsPass) {
  auto op = [](Inputs in) { return SquareTimes(in[0], in[1], -1, 1); };
  EXPECT_EQ(CheckGradients(op, {x_, y_}), absl::OkStatus());
}

TEST_F(GradCheckTest, NamesTheInputTheElementAndBothValues) {
  for (int64_t wrong : {0, 7, 14}) {
    auto op = [=](Inputs in) { return SquareTimes(in[1], in[0], wrong, 1.1f); };
    absl::Status status = CheckGradients(op, {y_, x_});
    ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("[CheckGradients] input 1 f32 [3, 5], element " + std::to_string(wrong) +
                          ": gradient "));
    EXPECT_THAT(std::string(status.message()), HasSubstr(", finite difference "));
  }
}

TEST_F(GradCheckTest, MissingGradientsFail) {
  auto half = [](Inputs in) { return Multiply(in[0], Variable(in[1].data())); };
  EXPECT_THAT(std::string(CheckGradients(half, {x_, y_}).message()), HasSubstr("gradient 0,"));
  auto none = [](Inputs in) { return Variable(in[0].data()); };
  EXPECT_EQ(CheckGradients(none, {x_}).code(), absl::StatusCode::kUnimplemented);
}

TEST_F(GradCheckTest, NotANumberFails) {
  auto op = [](Inputs in) { return Scale(in[0], std::nan("")); };
  EXPECT_FALSE(CheckGradients(op, {x_}).ok());
}

TEST_F(GradCheckTest, DoesNotWriteItsInputs) {
  std::vector<float> before = ToVector<float>(x_);
  EXPECT_EQ(CheckGradients([](Inputs in) { return Sigmoid(in[0]); }, {x_}), absl::OkStatus());
  EXPECT_EQ(ToVector<float>(x_), before);
}

}  // namespace
}  // namespace meshfold::testing
