// One way to test any op: its value and all its gradients against f64 references.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/autograd/variable.h"
#include "core/tensor/tensor.h"

namespace meshfold::testing {

using Op = std::function<Variable(const std::vector<Variable>&)>;

// What the reference says: the output, and the gradient of each input (empty: none is wanted).
struct Expected {
  std::vector<double> y;
  std::vector<std::vector<double>> grads;
};

// Runs `op` on leaves that hold `inputs` and backward from its output with gradient `dy`, twice, as
// two micro-batches into buffers that start as NaN. Checks the output, the gradients after one
// micro-batch, and twice the gradients after both, within `rel_of_max` (see ExpectClose); that
// nothing was written between rows; and, to the bit, that the value under kNoGrad and the gradient
// of each input wanted alone are the same.
void ExpectOp(const Op& op, const std::vector<Tensor>& inputs, const Tensor& dy,
              const Expected& expected, double rel_of_max, const std::string& what);

// Odd, padded (256 columns and 512 columns are a multiple of 1 KiB) and empty matrices.
std::vector<Shape> MatrixShapes();

// A copy without padding: what Tensor::Empty pads with is no guard, so ExpectClose would object.
Tensor Plain(const Tensor& tensor);

// Guarded random tensors; f64 values of a tensor.
Tensor Guarded(const std::string& name, const Shape& shape, DType dtype = DType::kF32);
std::vector<double> F64(const Tensor& tensor);

// The message of the InvalidArgument that `run` throws; "" when it throws nothing.
std::string InvalidArgumentOf(const std::function<void()>& run);

}  // namespace meshfold::testing
