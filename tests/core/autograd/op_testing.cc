#include "tests/core/autograd/op_testing.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

// Leaves with NaN gradient buffers; constants where `wanted` says no.
std::vector<Variable> MakeInputs(const std::vector<Tensor>& inputs,
                                 const std::function<bool(size_t)>& wanted) {
  std::vector<Variable> variables;
  for (size_t i = 0; i < inputs.size(); ++i) {
    variables.push_back(Variable::Leaf(inputs[i]));
    variables[i].set_requires_grad(wanted(i));
    variables[i].grad().SetBuffer(
        UnwrittenTensor(inputs[i].shape(), DType::kF32, Padding::kGuarded));
  }
  return variables;
}

std::vector<double> Times(std::vector<double> values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

void ExpectSameGradientAlone(const Op& op, const std::vector<Tensor>& inputs, const Tensor& dy,
                             size_t i, const Tensor& together, const std::string& what) {
  std::vector<Variable> alone = MakeInputs(inputs, [&](size_t other) { return other == i; });
  Backward({Root{op(alone), dy}}, {});
  ExpectBitEqual(alone[i].grad().tensor(), together, absl::StrCat(what, ", alone"));
}

}  // namespace

void ExpectOp(const Op& op, const std::vector<Tensor>& inputs, const Tensor& dy,
              const Expected& expected, double rel_of_max, const std::string& what) {
  auto wanted = [&](size_t i) { return !expected.grads[i].empty() || inputs[i].numel() == 0; };
  std::vector<Variable> leaves = MakeInputs(inputs, wanted);
  {
    ScopedGradMode no_grad(GradMode::kNoGrad);
    Variable value = op(leaves);
    EXPECT_FALSE(value.requires_grad()) << what;
    ExpectClose(Plain(value.data()), expected.y, rel_of_max, absl::StrCat(what, ": value"));
  }
  std::vector<Variable> first_only = MakeInputs(inputs, wanted);
  Backward({Root{op(first_only), dy}}, {});
  for (int64_t m = 0; m < 2; ++m) {
    Variable y = op(leaves);
    EXPECT_EQ(y.shape(), dy.shape()) << what;
    ExpectClose(Plain(y.data()), expected.y, rel_of_max, absl::StrCat(what, ": recorded value"));
    Backward({Root{y, dy}}, {.micro_batch = m, .num_micro_batches = 2});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!wanted(i)) continue;
    std::string name = absl::StrCat(what, ": gradient of input ", i);
    const Tensor& first = first_only[i].grad().tensor();
    ExpectClose(first, expected.grads[i], rel_of_max, name);
    ExpectClose(leaves[i].grad().tensor(), Times(expected.grads[i], 2.0), rel_of_max,
                absl::StrCat(name, ", two micro-batches"));
    ExpectSameGradientAlone(op, inputs, dy, i, first, name);
  }
}

std::vector<Shape> MatrixShapes() {
  return {{1, 1}, {3, 5}, {7, 33}, {5, 256}, {2, 512}, {130, 3}, {0, 8}};
}

Tensor Guarded(const std::string& name, const Shape& shape, DType dtype) {
  return RandomTensor(name, shape, {.dtype = dtype, .padding = Padding::kGuarded});
}

Tensor Plain(const Tensor& tensor) { return WithPadding(tensor, Padding::kNone); }

std::vector<double> F64(const Tensor& tensor) { return ToVector<double>(tensor); }

std::string InvalidArgumentOf(const std::function<void()>& run) {
  try {
    run();
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(error.status().message());
  }
  return "";
}

}  // namespace meshfold::testing
