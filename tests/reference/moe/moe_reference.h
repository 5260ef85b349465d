// A slow, obvious mixture-of-experts layer in float64, forward and backward: what the fast one is
// compared with. Its own gradients are checked by finite differences.
//
// Letters as in moe/routing.h; S is the width of the shared experts together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "moe/options.h"

namespace meshfold::reference {

// Everything a gradient is taken of, row-major; also the shape of the gradients themselves.
struct MoeTensors {
  std::vector<double> x_TD, gate_ED, gate_up_E2FD, down_EDF, shared_gate_up_2SD, shared_down_DS;

  // Name and values of each, for loops.
  struct Entry {
    const char* name;
    std::vector<double>* values;
  };
  std::vector<Entry> entries();
};

struct MoeProblem {
  moe::MoeOptions options;
  int64_t num_tokens = 0;  // T
  MoeTensors tensors;
  std::vector<double> bias_E;    // sigmoid_group_bias; empty: zeros
  std::vector<uint8_t> valid_T;  // empty: all valid
  double token_weight = 1.0;

  bool valid(int64_t t) const { return valid_T.empty() || valid_T[static_cast<size_t>(t)] != 0; }
  int64_t num_valid() const;
};

struct MoeForward {
  std::vector<double> logits_TE, scores_TE, probs_TE, weights_TK, y_TD;
  std::vector<int64_t> ids_TK;
  std::vector<bool> kept_TK;
  std::vector<int64_t> routed_E, kept_E;
  double aux = 0, z = 0;
  // The smallest distance of a chosen expert (or group) from one that was not chosen: rounding that
  // is smaller cannot change a route.
  double min_gap = 1e30;
};

// Values that f32 holds exactly, from (seed, tensor name). x is normal with variance 1, the gate
// 0.5, experts 0.3.
MoeProblem RandomProblem(const moe::MoeOptions& options, int64_t num_tokens, uint64_t seed);

MoeForward Forward(const MoeProblem& problem);

// Gradients of sum(y dy) + aux + z; counts and choices are constants.
MoeTensors Backward(const MoeProblem& problem, const MoeForward& forward,
                    const std::vector<double>& dy_TD);

}  // namespace meshfold::reference
