#include "core/nn/module.h"

#include <utility>

namespace meshfold {

Parameter MakeParameter(std::string name, Shape shape, InitSpec init, bool decay) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.part = Box::Whole(shape);
  parameter.shape = std::move(shape);
  parameter.value = Variable::Leaf(Tensor());
  parameter.init = init;
  parameter.decay = decay;
  return parameter;
}

Variable Module::operator()(const Variable& x, StepContext& context) {
  Variable input = pre_boundary_ ? pre_boundary_(x, context) : x;
  Variable output = Forward(input, context);
  return post_boundary_ ? post_boundary_(output, context) : output;
}

std::vector<Parameter*> ParametersOf(Module& module) {
  std::vector<Parameter*> parameters;
  module.VisitParameters([&](Parameter& parameter) { parameters.push_back(&parameter); });
  return parameters;
}

}  // namespace meshfold
