#include "core/nn/mlp.h"

#include "core/autograd/ops.h"

namespace meshfold {

SwiGluMlp::SwiGluMlp(const std::string& name, const Options& options)
    : options_(options),
      gate_up_(MakeParameter(name + ".gate_up.weight",
                             {2, options.intermediate_size, options.hidden_size},
                             {InitSpec::Kind::kNormal, options.init_stddev})),
      down_(MakeParameter(name + ".down.weight", {options.hidden_size, options.intermediate_size},
                          {InitSpec::Kind::kNormal, options.init_stddev})) {
  if (!options.bias) return;
  InitSpec zero{InitSpec::Kind::kConstant, 0.0};
  gate_up_bias_ = MakeParameter(name + ".gate_up.bias", {2, options.intermediate_size}, zero,
                                /*decay=*/false);
  down_bias_ = MakeParameter(name + ".down.bias", {options.hidden_size}, zero, /*decay=*/false);
}

void SwiGluMlp::VisitParameters(ParameterVisitor visit) {
  visit(gate_up_);
  visit(down_);
  if (!options_.bias) return;
  visit(gate_up_bias_);
  visit(down_bias_);
}

Variable SwiGluMlp::Forward(const Variable& x, StepContext& context) {
  (void)context;
  Variable hidden = Linear(x, gate_up_.value);
  if (options_.bias) hidden = AddBias(hidden, gate_up_bias_.value);
  Variable y = Linear(SwiGlu(hidden), down_.value);
  return options_.bias && adds_down_bias_ ? AddBias(y, down_bias_.value) : y;
}

}  // namespace meshfold
