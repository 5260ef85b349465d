// The arithmetic of random draws as constexpr functions of one index, so that every device computes
// the same bits: integer operations and correctly rounded float additions and multiplications only,
// no mathematics library. Compile users without contraction into FMA (core/base/BUILD).
//
// Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// Polynomials: Cephes (Moshier), single precision.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace meshfold::internal {

constexpr std::array<uint32_t, 4> PhiloxBlock(uint64_t key, uint64_t counter) {
  constexpr uint32_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMul0) * c0;
    const uint64_t p1 = static_cast<uint64_t>(kMul1) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

// -2 log(u) for u = (bits / 2 + 0.5) / 2^31, rounded to float: in [2^-32, 1]. Never negative.
constexpr float MinusTwoLog(uint32_t bits) {
  const float u = (static_cast<float>(static_cast<int32_t>(bits >> 1)) + 0.5f) * 0x1p-31f;
  // u = m 2^e with m in [sqrt(1/2), sqrt(2)).
  const uint32_t shifted = std::bit_cast<uint32_t>(u) - 0x3f3504f3u;
  const float e = static_cast<float>(static_cast<int32_t>(shifted) >> 23);
  const float x = std::bit_cast<float>((shifted & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  const float x2 = x * x;
  float p = 7.0376836292e-2f;
  p = p * x - 1.1514610310e-1f;
  p = p * x + 1.1676998740e-1f;
  p = p * x - 1.2420140846e-1f;
  p = p * x + 1.4249322787e-1f;
  p = p * x - 1.6668057665e-1f;
  p = p * x + 2.0000714765e-1f;
  p = p * x - 2.4999993993e-1f;
  p = p * x + 3.3333331174e-1f;
  p = p * x * x2;
  p = p + e * -2.12194440e-4f;
  p = p - 0.5f * x2;
  return -2.0f * ((x + p) + e * 0.693359375f);
}

struct FloatPair {
  float first = 0, second = 0;
};

// Cosine and sine of the angle of `bits` / 2^32 turns.
constexpr FloatPair CosSinOfTurn(uint32_t bits) {
  // The nearest quarter turn, and the rest within an eighth of a turn.
  const uint32_t quarter = (bits + 0x20000000u) >> 30;
  const int32_t rest = static_cast<int32_t>(bits - (quarter << 30));
  const float x = static_cast<float>(rest) * 1.4629180792671596e-9f;  // 2 pi / 2^32
  const float x2 = x * x;
  float s = -1.9515295891e-4f;
  s = s * x2 + 8.3321608736e-3f;
  s = s * x2 - 1.6666654611e-1f;
  s = s * x2 * x + x;
  float c = 2.443315711809948e-5f;
  c = c * x2 - 1.388731625493765e-3f;
  c = c * x2 + 4.166664568298827e-2f;
  c = c * x2 * x2 - 0.5f * x2 + 1.0f;
  // A quarter turn maps (cos, sin) to (-sin, cos); masks, since a loop of these must vectorise.
  const uint32_t swap = 0u - (quarter & 1u);
  const uint32_t cos_bits = std::bit_cast<uint32_t>(c), sin_bits = std::bit_cast<uint32_t>(s);
  const uint32_t first = (cos_bits & ~swap) | (sin_bits & swap);
  const uint32_t second = (sin_bits & ~swap) | (cos_bits & swap);
  const uint32_t first_sign = ((quarter + 1u) & 2u) << 30, second_sign = (quarter & 2u) << 30;
  return {std::bit_cast<float>(first ^ first_sign), std::bit_cast<float>(second ^ second_sign)};
}

}  // namespace meshfold::internal
