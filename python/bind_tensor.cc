// Tensors in Python: NumPy and DLPack see the same memory, row pitch included.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor/tensor.h"
#include "python/bindings.h"
#include "python/dlpack_abi.h"
#include "python/tensor_convert.h"

namespace meshfold::python {
namespace {

namespace py = pybind11;

// Strides in elements, outermost first.
std::vector<int64_t> StridesOf(const Tensor& tensor) {
  std::vector<int64_t> strides(static_cast<size_t>(tensor.rank()), 1);
  int64_t stride = tensor.pitch();
  for (int d = tensor.rank() - 2; d >= 0; --d) {
    strides[static_cast<size_t>(d)] = stride;
    stride *= tensor.dim(d);
  }
  return strides;
}

py::dtype NumpyDType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return py::dtype::of<float>();
    case DType::kF64:
      return py::dtype::of<double>();
    case DType::kF16:
      return py::dtype("float16");
    case DType::kI32:
      return py::dtype::of<int32_t>();
    case DType::kI64:
      return py::dtype::of<int64_t>();
    case DType::kU8:
      return py::dtype::of<uint8_t>();
    case DType::kBF16:
      break;
  }
  throw py::value_error("NumPy has no bf16: use torch.from_dlpack, or load the model in f32");
}

DLDataType DLTypeOf(DType dtype) {
  uint8_t bits = static_cast<uint8_t>(8 * SizeOf(dtype));
  switch (dtype) {
    case DType::kBF16:
      return {kDLBfloat, bits, 1};
    case DType::kI32:
    case DType::kI64:
      return {kDLInt, bits, 1};
    case DType::kU8:
      return {kDLUInt, bits, 1};
    default:
      return {kDLFloat, bits, 1};
  }
}

// A DLManagedTensor with the arrays that it points to and the tensor that keeps the memory.
struct Exported {
  SharedTensor shared;
  std::vector<int64_t> shape, strides;
  DLManagedTensor managed;
};

py::capsule ToDLPack(const SharedTensor& shared) {
  const Tensor& tensor = shared.tensor;
  auto exported = std::make_unique<Exported>();
  exported->shared = shared;
  exported->shape.assign(tensor.shape().dims().begin(), tensor.shape().dims().end());
  exported->strides = StridesOf(tensor);
  DLTensor& dl = exported->managed.dl_tensor;
  dl.data = tensor.raw();
  dl.device = {kDLCPU, 0};
  dl.ndim = tensor.rank();
  dl.dtype = DLTypeOf(tensor.dtype());
  dl.shape = exported->shape.data();
  dl.strides = exported->strides.data();
  dl.byte_offset = 0;
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };
  DLManagedTensor* managed = &exported.release()->managed;
  // A consumer renames the capsule; one that nobody took frees its tensor.
  return py::capsule(managed, "dltensor", [](PyObject* object) {
    if (PyCapsule_IsValid(object, "dltensor") == 0) return;
    auto* owned = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(object, "dltensor"));
    owned->deleter(owned);
  });
}

}  // namespace

py::array ToNumpy(const SharedTensor& shared) {
  const Tensor& tensor = shared.tensor;
  py::dtype dtype = NumpyDType(tensor.dtype());
  std::vector<int64_t> shape(tensor.shape().dims().begin(), tensor.shape().dims().end());
  std::vector<int64_t> strides = StridesOf(tensor);
  for (int64_t& stride : strides) stride *= SizeOf(tensor.dtype());
  auto* owner = new SharedTensor(shared);
  py::capsule base(owner, [](void* pointer) { delete static_cast<SharedTensor*>(pointer); });
  return py::array(dtype, shape, strides, tensor.raw(), base);
}

void BindTensor(py::module_& module) {
  py::class_<SharedTensor>(
      module, "Tensor",
      "A view of a tensor's memory. numpy() and DLPack consumers share it: writing "
      "there writes here.")
      .def_property_readonly("shape",
                             [](const SharedTensor& t) {
                               py::tuple shape(t.tensor.rank());
                               for (int d = 0; d < t.tensor.rank(); ++d) shape[d] = t.tensor.dim(d);
                               return shape;
                             })
      .def_property_readonly("dtype",
                             [](const SharedTensor& t) { return DTypeName(t.tensor.dtype()); })
      .def("numpy", &ToNumpy, "A NumPy array of the same memory (no copy).")
      .def(
          "__array__",
          [](const SharedTensor& t, const py::object& dtype, const py::object&) -> py::object {
            py::array array = ToNumpy(t);
            return dtype.is_none() ? py::object(array) : array.attr("astype")(dtype);
          },
          py::arg("dtype") = py::none(), py::arg("copy") = py::none())
      .def(
          "__dlpack__", [](const SharedTensor& t, const py::kwargs&) { return ToDLPack(t); },
          "A DLPack capsule of the same memory (no copy).")
      .def("__dlpack_device__", [](const Tensor&) { return py::make_tuple(kDLCPU, 0); })
      .def("__len__",
           [](const SharedTensor& t) { return t.tensor.rank() == 0 ? 0 : t.tensor.dim(0); })
      .def("__repr__", [](const SharedTensor& t) {
        return absl::StrCat("meshfold.Tensor(", t.tensor.ToString(), ")");
      });
}

}  // namespace meshfold::python
