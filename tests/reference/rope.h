// Rotary position embedding in f64.
#pragma once

#include <cmath>

#include "tests/reference/vec.h"

namespace meshfold::reference {

// cos and sin [positions, pairs] of the angles position * theta^(-i / pairs).
struct RopeTables {
  Vec cos, sin;
};

inline RopeTables MakeRopeTables(int64_t positions, int64_t pairs, double theta) {
  RopeTables tables;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = position * std::pow(theta, -static_cast<double>(i) / pairs);
      tables.cos.push_back(std::cos(angle));
      tables.sin.push_back(std::sin(angle));
    }
  }
  return tables;
}

// Rotates the pairs (i, i + pairs) of every head; dims from 2 pairs on stay.
inline Vec Rope(const Vec& x, int64_t num_heads, int64_t head_dim,
                const std::vector<int>& positions, const RopeTables& tables, int64_t pairs,
                bool inverse) {
  Vec out = x;
  for (size_t token = 0; token < positions.size(); ++token) {
    for (int64_t head = 0; head < num_heads; ++head) {
      for (int64_t i = 0; i < pairs; ++i) {
        const int64_t a = (token * num_heads + head) * head_dim + i, b = a + pairs;
        const double c = tables.cos[positions[token] * pairs + i];
        const double s = tables.sin[positions[token] * pairs + i] * (inverse ? -1 : 1);
        out[a] = x[a] * c - x[b] * s;
        out[b] = x[b] * c + x[a] * s;
      }
    }
  }
  return out;
}

}  // namespace meshfold::reference
