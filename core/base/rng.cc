#include "core/base/rng.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/rng_math.h"

namespace meshfold {
namespace {

// SplitMix64's finaliser: spreads every input bit over the output.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Four normals a Philox block: words 0 and 1 make elements 0 and 1, words 2 and 3 the others.
constexpr uint64_t kNormalsPerBlock = 4;

internal::FloatPair BoxMuller(uint32_t radius_bits, uint32_t angle_bits) {
  const float radius = std::sqrt(internal::MinusTwoLog(radius_bits));
  const internal::FloatPair point = internal::CosSinOfTurn(angle_bits);
  return {radius * point.first, radius * point.second};
}

// The normals of kBatch consecutive blocks, in loops of known length over separate arrays, which
// GCC vectorises at -O2: 100 million draws take a second on one core.
constexpr uint64_t kBatch = 16;

void NormalBatch(RngKey key, uint64_t first_block, float (&out)[kNormalsPerBlock * kBatch]) {
  uint32_t words[4][kBatch];
  float normals[4][kBatch];
  for (uint64_t i = 0; i < kBatch; ++i) {
    const std::array<uint32_t, 4> block = internal::PhiloxBlock(key.value, first_block + i);
    for (uint64_t j = 0; j < 4; ++j) words[j][i] = block[j];
  }
  for (uint64_t j = 0; j < 4; j += 2) {
    for (uint64_t i = 0; i < kBatch; ++i) {
      const internal::FloatPair pair = BoxMuller(words[j][i], words[j + 1][i]);
      normals[j][i] = pair.first;
      normals[j + 1][i] = pair.second;
    }
  }
  for (uint64_t i = 0; i < kBatch; ++i) {
    for (uint64_t j = 0; j < 4; ++j) out[4 * i + j] = normals[j][i];
  }
}

}  // namespace

RngKey MakeRngKey(uint64_t seed, absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ull;
  }
  return RngKey{Mix(seed ^ Mix(hash))};
}

RngKey FoldIn(RngKey key, uint64_t data) { return RngKey{Mix(key.value ^ Mix(data))}; }

std::array<uint32_t, 4> Philox(RngKey key, uint64_t counter) {
  return internal::PhiloxBlock(key.value, counter);
}

uint32_t RandomBits32(RngKey key, uint64_t index) { return Philox(key, index)[0]; }

uint64_t RandomBits64(RngKey key, uint64_t index) {
  std::array<uint32_t, 4> bits = Philox(key, index);
  return (static_cast<uint64_t>(bits[1]) << 32) | bits[0];
}

float UniformAt(RngKey key, uint64_t index) {
  return static_cast<float>(RandomBits32(key, index) >> 8) * 0x1p-24f;
}

uint64_t UniformIntAt(RngKey key, uint64_t index, uint64_t bound) {
  MF_CHECK_GT(bound, 0u);
  unsigned __int128 product = static_cast<unsigned __int128>(RandomBits64(key, index)) * bound;
  return static_cast<uint64_t>(product >> 64);
}

float NormalAt(RngKey key, uint64_t index) {
  const std::array<uint32_t, 4> words = Philox(key, index / kNormalsPerBlock);
  const uint64_t pair = (index % kNormalsPerBlock) / 2 * 2;
  const internal::FloatPair normals = BoxMuller(words[pair], words[pair + 1]);
  return index % 2 == 0 ? normals.first : normals.second;
}

void FillNormal(RngKey key, uint64_t first_index, float mean, float stddev, absl::Span<float> out) {
  constexpr uint64_t kNormals = kNormalsPerBlock * kBatch;
  float normals[kNormals];
  for (size_t done = 0; done < out.size();) {
    const uint64_t index = first_index + done;
    const uint64_t skipped = index % kNormals;  // not zero in the first batch only
    NormalBatch(key, index / kNormals * kBatch, normals);
    const size_t count = std::min<size_t>(kNormals - skipped, out.size() - done);
    for (size_t i = 0; i < count; ++i) out[done + i] = mean + stddev * normals[skipped + i];
    done += count;
  }
}

void FillUniform(RngKey key, uint64_t first_index, float low, float high, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = low + (high - low) * UniformAt(key, first_index + i);
  }
}

uint64_t PermuteIndex(RngKey key, uint64_t index, uint64_t size) {
  MF_CHECK_LT(index, size);
  if (size == 1) return 0;
  int bits = 64 - __builtin_clzll(size - 1);
  int half = (bits + 1) / 2;
  uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half, right = index & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      uint64_t next = (left ^ (FoldIn(key, (round << 56) ^ right).value & mask)) & mask;
      left = right;
      right = next;
    }
    index = (left << half) | right;
  } while (index >= size);  // cycle walking: the walk returns to the range it started in
  return index;
}

}  // namespace meshfold
