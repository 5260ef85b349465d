// What the binding files share: one Bind function a folder, and Status as Python exceptions.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace meshfold::python {

void BindTensor(pybind11::module_& module);  // core/tensor
void BindTrain(pybind11::module_& module);   // train

// Raises ValueError (InvalidArgument, NotFound, OutOfRange), TimeoutError (DeadlineExceeded),
// MemoryError (ResourceExhausted) or RuntimeError with the status's message.
void RaiseIfError(const absl::Status& status);

// What a call inside the graph throws (StatusError) reaches Python by its status code.
void TranslateStatusErrors();

template <typename T>
T ValueOrRaise(absl::StatusOr<T> result) {
  RaiseIfError(result.status());
  return std::move(result).value();
}

}  // namespace meshfold::python
