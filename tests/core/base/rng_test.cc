#include "core/base/rng.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <vector>

#include "core/base/rng_math.h"

namespace meshfold {
namespace {

using Words = std::array<uint32_t, 4>;

// Philox4x32-10 as the paper writes it, with a 128-bit counter.
Words ReferencePhilox(Words c, uint32_t k0, uint32_t k1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The known answers of Random123 (kat_vectors, philox4x32 10).
TEST(RngTest, ReferencePhiloxMatchesKnownAnswers) {
  EXPECT_EQ(ReferencePhilox({0, 0, 0, 0}, 0, 0),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(ReferencePhilox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      ReferencePhilox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngTest, PhiloxMatchesReference) {
  EXPECT_EQ(Philox(RngKey{0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint64_t key = 0x299f31d0a4093822, counter = 0x85a308d3243f6a88;
  EXPECT_EQ(Philox(RngKey{key}, counter),
            ReferencePhilox({0x243f6a88, 0x85a308d3, 0, 0}, 0xa4093822, 0x299f31d0));
}

// A changed bit would change every initial weight and every shuffle of a resumed run. Integers were
// computed by an independent program; the normals are within an ulp of its f64 results
// -0.15094090276323388 and 1.510074513754119.
TEST(RngTest, StreamsAreStable) {
  const RngKey key = MakeRngKey(42, "layers.0.mlp.gate_up");
  EXPECT_EQ(key.value, 0xa724c2c55150ca04u);
  EXPECT_EQ(FoldIn(key, 7).value, 0x3f41d3133358d89cu);
  EXPECT_EQ(Philox(key, 3), (Words{0x11500dae, 0xe5fe569b, 0xcb54540f, 0x31639470}));
  EXPECT_EQ(RandomBits64(key, 3), 0xe5fe569b11500daeu);
  EXPECT_EQ(std::bit_cast<uint32_t>(NormalAt(key, 0)), 0xbe1a9040u);
  EXPECT_EQ(std::bit_cast<uint32_t>(NormalAt(key, 5)), 0x3fc14a1eu);
}

TEST(RngTest, KeysDiffer) {
  std::set<uint64_t> values;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (const char* name : {"", "a", "b", "ab", "ba"}) {
      const RngKey key = MakeRngKey(seed, name);
      values.insert(key.value);
      values.insert(FoldIn(key, 0).value);
      values.insert(FoldIn(key, 1).value);
    }
  }
  EXPECT_EQ(values.size(), 750u);
}

TEST(RngTest, UniformsFillTheUnitInterval) {
  const RngKey key = MakeRngKey(1, "uniform");
  std::vector<float> values(100000);
  FillUniform(key, 5, -2.0f, 6.0f, absl::MakeSpan(values));
  double sum = 0, sum_squares = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], -2.0f + 8.0f * UniformAt(key, 5 + i));
    ASSERT_TRUE(values[i] >= -2.0f && values[i] < 6.0f) << values[i];
    sum += values[i];
    sum_squares += (values[i] - 2.0) * (values[i] - 2.0);
  }
  // Five standard errors of the mean (8 / sqrt(12 n)) and of the variance.
  EXPECT_NEAR(sum / 1e5, 2.0, 0.037);
  EXPECT_NEAR(sum_squares / 1e5, 64.0 / 12, 0.08);
}

TEST(RngTest, IntegersCoverTheirRangeEvenly) {
  const RngKey key = MakeRngKey(1, "int");
  std::vector<int> counts(7);
  for (uint64_t i = 0; i < 70000; ++i) ++counts[UniformIntAt(key, i, 7)];
  for (int count : counts) EXPECT_NEAR(count, 10000, 500);  // five standard errors
  EXPECT_EQ(UniformIntAt(key, 3, 1), 0u);
  EXPECT_DEATH(UniformIntAt(key, 3, 0), "bound");
}

// The polynomials against the mathematics library in f64, over bits spread through the whole range.
TEST(RngMathTest, LogAndCircleAreAccurate) {
  double log_error = 0, circle_error = 0;
  for (uint64_t i = 0; i < (uint64_t{1} << 32); i += 65521) {
    const uint32_t bits = static_cast<uint32_t>(i);
    const double u = (static_cast<float>(bits >> 1) + 0.5f) * 0x1p-31f;
    const double expected = -2 * std::log(u);
    const double actual = internal::MinusTwoLog(bits);
    ASSERT_GE(actual, 0.0) << bits;
    log_error = std::fmax(log_error, std::fabs(actual - expected) / std::fmax(expected, 1e-12));
    const double angle = 2 * M_PI * bits / 4294967296.0;
    const internal::FloatPair point = internal::CosSinOfTurn(bits);
    circle_error = std::fmax(circle_error, std::fabs(point.first - std::cos(angle)));
    circle_error = std::fmax(circle_error, std::fabs(point.second - std::sin(angle)));
  }
  EXPECT_LT(log_error, 2e-7);     // about two ulp
  EXPECT_LT(circle_error, 2e-7);  // the angle itself is rounded to 24 bits
  EXPECT_NEAR(internal::MinusTwoLog(0), 64 * std::log(2.0), 1e-5);
  EXPECT_EQ(internal::MinusTwoLog(0xffffffff), 0.0f);
}

TEST(RngTest, NormalsHaveNormalMoments) {
  constexpr int kCount = 1000000;
  std::vector<float> values(kCount);
  FillNormal(MakeRngKey(3, "normal"), 0, 0.0f, 1.0f, absl::MakeSpan(values));
  double moments[5] = {}, neighbours = 0;
  int beyond_two = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = values[i];
    for (int m = 1; m <= 4; ++m) moments[m] += std::pow(x, m) / kCount;
    if (i > 0) neighbours += x * values[i - 1] / kCount;
    beyond_two += std::fabs(x) > 2;
  }
  // Five standard errors each.
  EXPECT_NEAR(moments[1], 0, 0.005);
  EXPECT_NEAR(moments[2], 1, 0.0071);
  EXPECT_NEAR(moments[3], 0, 0.02);
  EXPECT_NEAR(moments[4], 3, 0.05);
  EXPECT_NEAR(neighbours, 0, 0.005);
  EXPECT_NEAR(beyond_two, 45500, 1050);
}

// A shard draws the slice of the whole, wherever it starts and ends.
TEST(RngTest, SlicesOfNormalsAreBitEqual) {
  const RngKey key = MakeRngKey(9, "slice");
  std::vector<float> whole(500);
  FillNormal(key, 0, 0.25f, 1.7f, absl::MakeSpan(whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    ASSERT_EQ(whole[i], 0.25f + 1.7f * NormalAt(key, i)) << i;
  }
  for (size_t begin : {0, 1, 2, 3, 63, 64, 65, 131}) {
    for (size_t count : {0, 1, 2, 63, 64, 65, 200}) {
      std::vector<float> slice(count);
      FillNormal(key, begin, 0.25f, 1.7f, absl::MakeSpan(slice));
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(slice[i], whole[begin + i]) << begin << " " << i;
    }
  }
}

TEST(RngTest, LargeIndicesDoNotRepeat) {
  const RngKey key = MakeRngKey(9, "large");
  const uint64_t far = uint64_t{1} << 40;
  EXPECT_NE(NormalAt(key, 0), NormalAt(key, far));
  EXPECT_NE(RandomBits32(key, 1), RandomBits32(key, far + 1));
}

TEST(RngTest, PermutationIsABijection) {
  for (uint64_t size : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    for (uint64_t seed : {1, 2}) {
      std::vector<int> hits(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t image = PermuteIndex(MakeRngKey(seed, "shuffle"), i, size);
        ASSERT_LT(image, size);
        ++hits[image];
      }
      for (int n : hits) ASSERT_EQ(n, 1) << size;
    }
  }
}

TEST(RngTest, PermutationShuffles) {
  constexpr uint64_t kSize = 1000;
  int fixed = 0, ascents = 0, same_under_other_key = 0;
  for (uint64_t i = 0; i < kSize; ++i) {
    const uint64_t image = PermuteIndex(MakeRngKey(1, "s"), i, kSize);
    fixed += image == i;
    ascents += i > 0 && image > PermuteIndex(MakeRngKey(1, "s"), i - 1, kSize);
    same_under_other_key += image == PermuteIndex(MakeRngKey(2, "s"), i, kSize);
  }
  EXPECT_LT(fixed, 10);           // one expected
  EXPECT_NEAR(ascents, 500, 60);  // standard deviation about 9
  EXPECT_LT(same_under_other_key, 10);
  EXPECT_DEATH(PermuteIndex(RngKey{1}, 5, 5), "index");
}

}  // namespace
}  // namespace meshfold
