// Tensors as NumPy arrays, for the other binding files.
#pragma once

#include <pybind11/numpy.h>

#include "core/tensor/tensor.h"

namespace meshfold::python {

// An array of the tensor's memory, which it keeps alive. ValueError for bf16.
pybind11::array ToNumpy(const Tensor& tensor);

}  // namespace meshfold::python
