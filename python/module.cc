// The extension module meshfold._core: registers the bindings, translates errors.
#include <string>

#include "core/base/check.h"
#include "python/bindings.h"

namespace meshfold::python {
namespace {

PyObject* ExceptionTypeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
      return PyExc_ValueError;
    case absl::StatusCode::kDeadlineExceeded:
      return PyExc_TimeoutError;
    case absl::StatusCode::kResourceExhausted:
      return PyExc_MemoryError;
    default:
      return PyExc_RuntimeError;
  }
}

void SetPythonError(const absl::Status& status) {
  PyErr_SetString(ExceptionTypeOf(status.code()), std::string(status.message()).c_str());
}

}  // namespace

void RaiseIfError(const absl::Status& status) {
  if (status.ok()) return;
  SetPythonError(status);
  throw pybind11::error_already_set();
}

void TranslateStatusErrors() {
  pybind11::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusError& error) {
      SetPythonError(error.status());
    }
  });
}

}  // namespace meshfold::python

PYBIND11_MODULE(_core, module) {
  module.doc() = "Meshfold's compiled part; use `import meshfold`.";
  meshfold::python::TranslateStatusErrors();
  meshfold::python::BindTensor(module);
  meshfold::python::BindTrain(module);
}
