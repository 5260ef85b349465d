// The smallest extension module: proves that mf_py_extension makes one that Python can load.
#include <pybind11/pybind11.h>

PYBIND11_MODULE(toolchain_extension, module) {
  module.def("double", [](int value) { return 2 * value; });
}
