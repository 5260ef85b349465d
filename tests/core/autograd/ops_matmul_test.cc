// Linear against f64.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/linear.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using Inputs = absl::Span<const Variable>;
using reference::LinearGradients;
using reference::Vec;

// Sums of up to 512 products in f32, relative to the largest element.
constexpr double kSums = 3e-6;

class OpsMatmulTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

struct LinearCase {
  int64_t tokens, in, out;
};

TEST_F(OpsMatmulTest, Linear) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const LinearCase& c : std::vector<LinearCase>{
             {1, 1, 1}, {5, 7, 3}, {33, 256, 17}, {17, 12, 256}, {9, 512, 256}, {0, 8, 6}}) {
      Tensor x = Guarded("x", {c.tokens, c.in}), dy = Guarded("dy", {c.tokens, c.out});
      Tensor w = Guarded("w", {c.out, c.in}, dtype);
      LinearGradients grads = reference::LinearBackward(F64(x), F64(w), F64(dy), c.in, c.out);
      ExpectOp([](const auto& in) { return Linear(in[0], in[1]); }, {x, w}, dy,
               {reference::Linear(F64(x), F64(w), c.in, c.out), {grads.dx, grads.dw}}, kSums,
               absl::StrCat(c.tokens, " x ", c.in, " -> ", c.out, " ", DTypeName(dtype)));
    }
  }
}

TEST_F(OpsMatmulTest, LinearTakesWeightsOfMoreDims) {
  Tensor x = Guarded("x", {6, 256}), dy = Guarded("dy", {6, 10}), w = Guarded("w", {2, 5, 256});
  LinearGradients grads = reference::LinearBackward(F64(x), F64(w), F64(dy), 256, 10);
  ExpectOp([](const auto& in) { return Linear(in[0], in[1]); }, {x, w}, dy,
           {reference::Linear(F64(x), F64(w), 256, 10), {grads.dx, grads.dw}}, kSums, "3 dims");
}

TEST_F(OpsMatmulTest, ALeafAsInputAccumulatesToo) {
  Variable x = Variable::Leaf(RandomTensor("x", {4, 5})), w(RandomTensor("w", {3, 5}));
  Tensor dy = RandomTensor("dy", {4, 3});
  for (int64_t m = 0; m < 2; ++m) {
    Backward({Root{Linear(x, w), dy}}, {.micro_batch = m, .num_micro_batches = 2});
  }
  Vec dx = reference::LinearBackward(F64(x.data()), F64(w.data()), F64(dy), 5, 3).dx;
  for (double& value : dx) value *= 2.0;
  ExpectClose(x.grad().tensor(), dx, kSums);
}

TEST_F(OpsMatmulTest, SavesOnlyWhatTheWantedGradientsNeed) {
  Variable x = Variable::Leaf(RandomTensor("x", {4, 5})),
           w = Variable::Leaf(RandomTensor("w", {3, 5}));
  auto saved = [](const Variable& y, size_t slot) {
    const Saved::Slot& entry = y.grad_fn()->saved().slots()[slot];
    return entry.tensor.defined() || entry.parameter.defined();
  };
  Variable both = Linear(x, w), x_only = Linear(x, Variable(w.data())),
           w_only = Linear(Variable(x.data()), w);
  EXPECT_TRUE(saved(both, 0) && saved(both, 1));
  EXPECT_FALSE(saved(x_only, 0));
  EXPECT_TRUE(saved(x_only, 1));
  EXPECT_TRUE(saved(w_only, 0));
  EXPECT_FALSE(saved(w_only, 1));
}

TEST_F(OpsMatmulTest, PassesTheGradientCheck) {
  Tensor x = RandomTensor("x", {4, 6}), w = RandomTensor("w", {5, 6});
  EXPECT_EQ(CheckGradients([](Inputs in) { return Linear(in[0], in[1]); }, {x, w}),
            absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
