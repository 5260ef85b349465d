// Counter-based random numbers: a draw is a pure function of (key, index).
//
// Nothing carries a generator state, so a rank that owns a slice of a tensor draws the slice's
// numbers bit-equal to the whole, and a replayed forward draws what the first one drew.
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace meshfold {

// Identifies one stream of numbers.
struct RngKey {
  uint64_t value = 0;
};

// The stream of (seed, name): parameter initialisation uses the parameter's name, the data loader
// "shuffle/epoch/3", and so on. Stable across platforms (FNV-1a over the bytes, then mixed).
RngKey MakeRngKey(uint64_t seed, absl::string_view name);

// A sub-stream: run-time draws fold in (step, sample, position, channel).
RngKey FoldIn(RngKey key, uint64_t data);

// One Philox block: four independent 32-bit words for (key, counter).
std::array<uint32_t, 4> Philox(RngKey key, uint64_t counter);

// 32 or 64 uniform bits for element `index`.
uint32_t RandomBits32(RngKey key, uint64_t index);
uint64_t RandomBits64(RngKey key, uint64_t index);

// Uniform in [0, 1) with 24 bits (element `index`).
float UniformAt(RngKey key, uint64_t index);

// Uniform integer in [0, bound), bound > 0 (Lemire's multiply-shift on 64 bits: the
// bias is below bound / 2^64).
uint64_t UniformIntAt(RngKey key, uint64_t index, uint64_t bound);

// Standard normal for element `index`, at most 6.7 in magnitude (Box-Muller on half a Philox block
// for each two elements). The same bits on every machine and device: core/base/rng_math.h.
float NormalAt(RngKey key, uint64_t index);

// out[i] = mean + stddev * NormalAt(key, first_index + i), the same bits as elementwise.
void FillNormal(RngKey key, uint64_t first_index, float mean, float stddev, absl::Span<float> out);

// out[i] = low + (high - low) * UniformAt(key, first_index + i).
void FillUniform(RngKey key, uint64_t first_index, float low, float high, absl::Span<float> out);

// The image of `index` under a pseudo-random permutation of [0, size) (Feistel network with cycle
// walking): shuffles datasets of any size with no table.
uint64_t PermuteIndex(RngKey key, uint64_t index, uint64_t size);

}  // namespace meshfold
