// A small SelfAttention for tests.
#pragma once

#include <memory>

#include "core/nn/attention.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/reference/rope.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {

constexpr double kSmallTheta = 100.0;

// Tables of `positions` positions and `pairs` pairs to the base kSmallTheta.
inline std::shared_ptr<const RopeTable> SmallRopeTable(int64_t positions, int64_t pairs) {
  reference::RopeTables tables = reference::MakeRopeTables(positions, pairs, kSmallTheta);
  return std::make_shared<const RopeTable>(RopeTable{MakeTensor(tables.cos, {positions, pairs}),
                                                     MakeTensor(tables.sin, {positions, pairs})});
}

// Hidden size 10, 4 heads of 6 dims, 2 KV heads, 16 positions.
inline SelfAttention::Options SmallAttention() {
  return {
      .hidden_size = 10,
      .attention = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 6, .value_dim = 6, .scale = 0.4},
      .norm_eps = 0.01,
      .rope = SmallRopeTable(16, 3)};
}

// The module "a" with random parameters.
inline std::unique_ptr<SelfAttention> MakeRandom(const SelfAttention::Options& options) {
  auto module = std::make_unique<SelfAttention>("a", options);
  FillRandom(*module);
  return module;
}

}  // namespace meshfold::testing
