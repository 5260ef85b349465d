// The innermost loop of a matrix product: one tile of the result in registers. Compiled once for
// each instruction set; include after foreach_target.h and highway.h.
#if defined(MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_TILE_INL_H_
#undef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_TILE_INL_H_
#else
#define MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "core/backend/cpu/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {

// A tile is kTileRows x (kTileVecs vectors): all sums, one row of B and one broadcast element fill
// the 32 registers of AVX-512 or the 16 of AVX2, with more multiply-adds in flight than their
// latency times two ports.
inline constexpr int kTileRows = HWY_MAX_BYTES == 64 ? 8 : 4;
inline constexpr int kTileVecs = 3;

// Cache lines that a tile fetches into the level-2 cache while it multiplies.
struct LineStream {
  const char* at;
  int64_t step;  // bytes
  int64_t count;
};

struct TileArgs {
  const float* a;  // element (i, p) at p * a_step + i; with Left::kRows at i * a_step + p
  int64_t a_step;
  const float* b;  // row p at p * b_step
  int64_t b_step;
  int64_t k;
  float* out;
  int64_t out_pitch;
  bool accumulate;
  LineStream fetch;
};

// How a tile finds its operands: packed for it, or where they lie. Rows of a far operand are too
// far apart for the hardware to foresee the next one, so each is fetched kFarAhead steps before it
// is needed.
enum class Left { kPacked, kRows, kFarColumns };
enum class Right { kPacked, kFar };
inline constexpr int64_t kFarAhead = 4;

// Column p of a tile's A.
template <Left kLeft>
class LeftCursor {
 public:
  LeftCursor(const float* a, int64_t step) : a_(a), step_(step) {}
  HWY_INLINE const float* at(int i) const { return a_ + i; }
  HWY_INLINE void Next() { a_ += step_; }

 private:
  const float* a_;
  const int64_t step_;
};

// Three pointers with the step once and twice reach eight rows by the processor's addressing modes.
template <>
class LeftCursor<Left::kRows> {
 public:
  LeftCursor(const float* a, int64_t step)
      : row0_(a), row3_(a + 3 * step), row6_(a + (kTileRows > 6 ? 6 : 0) * step), step_(step) {}
  HWY_INLINE const float* at(int i) const {
    return (i < 3 ? row0_ : i < 6 ? row3_ : row6_) + i % 3 * step_;
  }
  HWY_INLINE void Next() {
    ++row0_;
    ++row3_;
    ++row6_;
  }

 private:
  const float *row0_, *row3_, *row6_;
  const int64_t step_;
};

// Adds column p of A times row p of B, and moves on to the next.
template <int kRows, int kVecs, Left kLeft, Right kRight>
HWY_INLINE void TileStep(LeftCursor<kLeft>& a, int64_t a_step, const float*& b, int64_t b_step,
                         FloatVec (&sum)[kRows][kVecs]) {
  const FloatTag d;
  FloatVec right[kVecs];
#pragma GCC unroll 3
  for (int j = 0; j < kVecs; ++j) {
    right[j] = hn::LoadU(d, b + j * kFloatLanes);
    if (kRight == Right::kFar) {
      __builtin_prefetch(b + kFarAhead * b_step + j * kFloatLanes, 0, 3);
    }
  }
  if (kLeft == Left::kFarColumns) __builtin_prefetch(a.at(0) + kFarAhead * a_step, 0, 3);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const FloatVec left = hn::Set(d, *a.at(i));
#pragma GCC unroll 3
    for (int j = 0; j < kVecs; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
  }
  a.Next();
  b += b_step;
}

// Lines that a whole tile has time to fetch: one for every two steps after the lines of the result.
inline int64_t MaxLinesPerTile(int64_t k, int64_t vecs) {
  return std::max<int64_t>(0, k / 2 - kTileRows * vecs);
}

template <int kRows, int kVecs, Left kLeft, Right kRight>
HWY_NOINLINE void Tile(const TileArgs& args) {
  const TileArgs t = args;  // a copy cannot change under the stores below
  const FloatTag d;
  FloatVec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < kVecs; ++j) sum[i][j] = hn::Zero(d);
  }
  LeftCursor<kLeft> a(t.a, t.a_step);
  const float* b = t.b;
  int64_t p = t.k;
  for (int j = 0; j < kVecs && p >= 2 * kRows; ++j) {
    const float* out = t.out + j * kFloatLanes;
    for (int i = 0; i < kRows; ++i) {
      __builtin_prefetch(out, 1, 3);
      out += t.out_pitch;
      TileStep<kRows, kVecs, kLeft, kRight>(a, t.a_step, b, t.b_step, sum);
      TileStep<kRows, kVecs, kLeft, kRight>(a, t.a_step, b, t.b_step, sum);
    }
    p -= 2 * kRows;
  }
  // Evenly, since a burst would queue before the loads of the steps.
  LineStream fetch = t.fetch;
  const int64_t pairs_per_line = std::max<int64_t>(1, p / 2 / std::max<int64_t>(1, fetch.count));
  while (p >= 2) {
    if (fetch.count > 0) __builtin_prefetch(fetch.at, 0, 2);
    fetch.at += fetch.step;
    --fetch.count;
    const int64_t pairs = std::min(pairs_per_line, p / 2);
    for (int64_t i = 0; i < pairs; ++i) {
      TileStep<kRows, kVecs, kLeft, kRight>(a, t.a_step, b, t.b_step, sum);
      TileStep<kRows, kVecs, kLeft, kRight>(a, t.a_step, b, t.b_step, sum);
    }
    p -= 2 * pairs;
  }
  if (p > 0) TileStep<kRows, kVecs, kLeft, kRight>(a, t.a_step, b, t.b_step, sum);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float* out = t.out + i * t.out_pitch;
#pragma GCC unroll 3
    for (int j = 0; j < kVecs; ++j) {
      FloatVec result = sum[i][j];
      if (t.accumulate) result = hn::Add(hn::LoadU(d, out + j * kFloatLanes), result);
      hn::StoreU(result, d, out + j * kFloatLanes);
    }
  }
}

using TileFunction = void (*)(const TileArgs&);

template <int kVecs, Left kLeft, Right kRight>
HWY_INLINE TileFunction TileOfRows(int64_t rows) {
  constexpr TileFunction kTiles[8] = {
      &Tile<1, kVecs, kLeft, kRight>,
      &Tile<2, kVecs, kLeft, kRight>,
      &Tile<3, kVecs, kLeft, kRight>,
      &Tile<4, kVecs, kLeft, kRight>,
      &Tile<HWY_MIN(5, kTileRows), kVecs, kLeft, kRight>,
      &Tile<HWY_MIN(6, kTileRows), kVecs, kLeft, kRight>,
      &Tile<HWY_MIN(7, kTileRows), kVecs, kLeft, kRight>,
      &Tile<HWY_MIN(8, kTileRows), kVecs, kLeft, kRight>,
  };
  return kTiles[rows - 1];
}

// The function for a tile of `rows` <= kTileRows and `vecs` <= kTileVecs.
template <Left kLeft, Right kRight>
TileFunction SelectTile(int64_t rows, int64_t vecs) {
  if (vecs == 3) return TileOfRows<3, kLeft, kRight>(rows);
  if (vecs == 2) return TileOfRows<2, kLeft, kRight>(rows);
  return TileOfRows<1, kLeft, kRight>(rows);
}

}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_TILE_INL_H_
