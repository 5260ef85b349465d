#include "tests/core/nn/nn_testing.h"

#include <gtest/gtest.h>

#include "core/autograd/engine.h"
#include "core/nn/init.h"
#include "tests/reference/numeric_gradient.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {

void FillRandom(Module& module, double stddev, DType dtype) {
  module.VisitParameters([&](Parameter& parameter) {
    parameter.dtype = dtype;
    double mean = parameter.init.kind == InitSpec::Kind::kConstant ? parameter.init.value : 0.0;
    parameter.value.SetData(RandomTensor(parameter.name, parameter.shape,
                                         {.mean = mean, .stddev = stddev, .dtype = dtype}));
  });
}

std::map<std::string, std::vector<double>> ValuesOf(Module& module) {
  std::map<std::string, std::vector<double>> values;
  module.VisitParameters([&](Parameter& parameter) {
    values[parameter.name] = ToVector<double>(parameter.value.data());
  });
  return values;
}

Parameter& ParameterNamed(Module& module, const std::string& name) {
  Parameter* found = nullptr;
  for (Parameter* parameter : ParametersOf(module)) {
    if (parameter->name == name) found = parameter;
  }
  EXPECT_NE(found, nullptr) << "no parameter " << name;
  return *found;
}

std::vector<double> GradientOf(Module& module, const std::string& name) {
  return ToVector<double>(ParameterNamed(module, name).value.grad().tensor());
}

PackedBatch RandomBatch(const std::vector<int32_t>& cu_seqlens, int32_t vocab) {
  int64_t total = cu_seqlens.back();
  return MakePackedBatch(ToVector<int32_t>(RandomIds("tokens", {total}, 0, vocab)),
                         ToVector<int32_t>(RandomIds("targets", {total}, -2, vocab)), cu_seqlens);
}

void ExpectModule(Module& module, const Tensor& x, const PackedBatch& batch,
                  const ModuleReference& reference, double rel_of_max) {
  StepContext context(batch, {});
  Variable input = Variable::Leaf(x);
  Variable y = module(input, context);
  std::vector<double> x_values = ToVector<double>(x);
  std::map<std::string, std::vector<double>> values = ValuesOf(module);
  ExpectClose(y.data(), reference(x_values, values), rel_of_max, "output");
  Tensor dy = RandomTensor("dy", y.shape());
  Backward({Root{y, dy}}, {});
  std::vector<double> weights = ToVector<double>(dy);
  auto along_x = [&](const std::vector<double>& moved) {
    return Dot(weights, reference(moved, values));
  };
  ExpectClose(input.grad().tensor(), reference::NumericGradient(along_x, x_values), rel_of_max,
              "gradient of x");
  module.VisitParameters([&](Parameter& parameter) {
    std::map<std::string, std::vector<double>> moved = values;
    auto along = [&](const std::vector<double>& value) {
      moved[parameter.name] = value;
      return Dot(weights, reference(x_values, moved));
    };
    ExpectClose(parameter.value.grad().tensor(),
                reference::NumericGradient(along, values[parameter.name]), rel_of_max,
                "gradient of " + parameter.name);
  });
}

}  // namespace meshfold::testing
