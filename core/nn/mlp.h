// The dense feed-forward layer: SwiGLU with gate and up in one parameter.
#pragma once

#include <cstdint>
#include <string>

#include "core/nn/module.h"

namespace meshfold {

// y = down(silu(g) * u), [g | u] = gate_up(x). Parameters <name>.gate_up.weight [2, F, D] and
// <name>.down.weight [D, F], with optional biases [2, F] and [D]. Shazeer 2020 (GLU variants).
class SwiGluMlp : public Module {
 public:
  struct Options {
    int64_t hidden_size = 0, intermediate_size = 0;
    bool bias = false;
    double init_stddev = 0.02;
  };
  SwiGluMlp(const std::string& name, const Options& options);
  void VisitParameters(ParameterVisitor visit) override;

  // For axes, as LinearLayer's.
  const Options& options() const { return options_; }
  Parameter& gate_up() { return gate_up_; }
  Parameter& down() { return down_; }
  Parameter* gate_up_bias() { return options_.bias ? &gate_up_bias_ : nullptr; }
  Parameter* down_bias() { return options_.bias ? &down_bias_ : nullptr; }
  void set_adds_down_bias(bool value) { adds_down_bias_ = value; }

 protected:
  Variable Forward(const Variable& x, StepContext& context) override;

 private:
  Options options_;
  Parameter gate_up_, down_, gate_up_bias_, down_bias_;
  bool adds_down_bias_ = true;
};

}  // namespace meshfold
