// Tensors for Python: what keeps their memory, and NumPy arrays of it.
#pragma once

#include <pybind11/numpy.h>

#include <memory>

#include "core/tensor/tensor.h"

namespace meshfold::python {

// A tensor and what must outlive it, such as the trainer whose pool its memory comes from. Members
// are destroyed last to first.
struct SharedTensor {
  std::shared_ptr<void> owner;
  Tensor tensor;
};

// An array of the tensor's memory, which it keeps alive. ValueError for bf16.
pybind11::array ToNumpy(const SharedTensor& shared);

}  // namespace meshfold::python
