// Packing of matrix operands: B into panels of whole vectors, A^T into panels of tile rows; 16-bit
// elements become f32 on the way. Compiled once for each instruction set; include after
// foreach_target.h and highway.h.
#if defined(MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_PACK_INL_H_
#undef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_PACK_INL_H_
#else
#define MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_PACK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "core/backend/cpu/matrix_kernel.h"
#include "core/backend/cpu/matrix_kernel_tile-inl.h"
#include "core/backend/cpu/vector_math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {

// Elements of any weight type as f32 vectors and scalars.
template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const BF16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsFloat(D d, const F16* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, ToFloat(*p));  // hn::PromoteTo loses infinities where it is emulated
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#endif
}
HWY_INLINE float AsFloat(float value) { return value; }
template <class T>
HWY_INLINE float AsFloat(T value) {
  return ToFloat(value);
}

// Rows of X: evenly spaced, or with rows past the edge replaced by the last one.
template <class T>
struct EvenRows {
  const T* x;
  int64_t pitch;
  HWY_INLINE const T* at(int64_t r) const { return x + r * pitch; }
};
template <class T>
struct EdgeRows {
  const T* x;
  int64_t pitch, num_rows;
  HWY_INLINE const T* at(int64_t r) const { return x + std::min(r, num_rows - 1) * pitch; }
};

#if HWY_TARGET != HWY_SCALAR
// Elements p, ..., p + 3 of rows r, r + 4, ..., one row in each 128-bit block.
template <class D, class Rows>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const Rows& rows, int64_t r, int64_t p) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  if constexpr (kLanes == 4) {
    return LoadAsFloat(d, rows.at(r) + p);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, LoadBlocks(half, rows, r + kLanes / 2, p), LoadBlocks(half, rows, r, p));
  }
}

// Writes elements p, ..., p + 3 of Lanes(d) rows as four vectors, `stride` floats apart.
template <class D, class Rows>
HWY_INLINE void TransposeFour(D d, const Rows& rows, int64_t p, int64_t stride,
                              float* HWY_RESTRICT out) {
  const hn::Repartition<double, D> d64;
  const auto r0 = LoadBlocks(d, rows, 0, p), r1 = LoadBlocks(d, rows, 1, p);
  const auto r2 = LoadBlocks(d, rows, 2, p), r3 = LoadBlocks(d, rows, 3, p);
  const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, low01, low23)), d, out);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23)), d, out + stride);
  hn::Store(hn::BitCast(d, hn::InterleaveLower(d64, high01, high23)), d, out + 2 * stride);
  hn::Store(hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23)), d, out + 3 * stride);
}
#endif

template <class D, class Rows>
HWY_INLINE void TransposeAll([[maybe_unused]] D d, const Rows& rows, int64_t k, int64_t stride,
                             float* HWY_RESTRICT out) {
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; p + 4 <= k; p += 4) TransposeFour(d, rows, p, stride, out + p * stride);
#endif
  for (; p < k; ++p) {
    for (int64_t r = 0; r < kLanes; ++r) out[p * stride + r] = AsFloat(rows.at(r)[p]);
  }
}

// Writes Lanes(d) rows of `k` elements as columns: element (r, p) to out[p * stride + r]. Rows past
// the `num_rows` that exist repeat the last one; nothing that comes of them is stored.
template <class D, class T>
HWY_INLINE void TransposeRows(D d, const T* x, int64_t pitch, int64_t num_rows, int64_t k,
                              int64_t stride, float* HWY_RESTRICT out) {
  if (num_rows >= static_cast<int64_t>(hn::MaxLanes(D()))) {
    TransposeAll(d, EvenRows<T>{x, pitch}, k, stride, out);
  } else {
    TransposeAll(d, EdgeRows<T>{x, pitch, num_rows}, k, stride, out);
  }
}

// Packs `cols` columns of B = X^T for `k` rows of B; `x` is the first element. The panel's `width`
// is whole vectors.
template <class T>
HWY_INLINE void PackPanelTransposed(const T* x, int64_t pitch, int64_t k, int64_t cols,
                                    int64_t width, float* HWY_RESTRICT out) {
  for (int64_t v = 0; v < width; v += kFloatLanes) {
    TransposeRows(FloatTag(), x + v * pitch, pitch, cols - v, k, width, out + v);
  }
}

// The same of B = X when all columns exist.
template <int kVecs, class T>
HWY_INLINE void PackWholeRows(const T* x, int64_t pitch, int64_t k, float* HWY_RESTRICT out) {
  const FloatTag d;
  for (int64_t p = 0; p < k; ++p, x += pitch, out += kVecs * kFloatLanes) {
#pragma GCC unroll 3
    for (int v = 0; v < kVecs; ++v) {
      hn::Store(LoadAsFloat(d, x + v * kFloatLanes), d, out + v * kFloatLanes);
    }
  }
}

// The same of B = X; columns past the edge are zero.
template <class T>
HWY_INLINE void PackPanelRows(const T* x, int64_t pitch, int64_t k, int64_t cols, int64_t width,
                              float* HWY_RESTRICT out) {
  if (cols == 3 * kFloatLanes) return PackWholeRows<3>(x, pitch, k, out);
  if (cols == 2 * kFloatLanes) return PackWholeRows<2>(x, pitch, k, out);
  for (int64_t p = 0; p < k; ++p, x += pitch, out += width) {
    for (int64_t c = 0; c < width; ++c) out[c] = c < cols ? AsFloat(x[c]) : 0.0f;
  }
}

template <class T>
HWY_INLINE void PackPanelOf(const cpu::MatrixOperand& b, int64_t p0, int64_t k, int64_t c0,
                            int64_t cols, int64_t width, float* out) {
  const T* x = static_cast<const T*>(b.data);
  if (b.transpose) {
    PackPanelTransposed(x + c0 * b.pitch + p0, b.pitch, k, cols, width, out);
  } else {
    PackPanelRows(x + p0 * b.pitch + c0, b.pitch, k, cols, width, out);
  }
}

// Packs rows [p0, p0 + k) and columns [c0, c0 + cols) of B into a panel of `width` columns.
inline void PackPanel(const cpu::MatrixOperand& b, int64_t p0, int64_t k, int64_t c0, int64_t cols,
                      int64_t width, float* out) {
  switch (b.dtype) {
    case DType::kBF16:
      return PackPanelOf<BF16>(b, p0, k, c0, cols, width, out);
    case DType::kF16:
      return PackPanelOf<F16>(b, p0, k, c0, cols, width, out);
    default:
      return PackPanelOf<float>(b, p0, k, c0, cols, width, out);
  }
}

// Packs one tile's rows of A = X^T for `k` elements of depth.
HWY_INLINE void PackLeftColumns(const float* x, int64_t pitch, int64_t k, float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kTileRows> d;
  constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
#pragma GCC unroll 4
  for (int64_t p = 0; p < k; ++p) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kTileRows; v += kLanes) hn::Store(hn::LoadU(d, x + v), d, out + v);
    x += pitch;
    out += kTileRows;
  }
}

// Packs `rows` rows of A for `k` elements of depth, `first` being the first element: tiles of
// kTileRows rows, element (i, p) of a tile at p * kTileRows + i.
inline void PackTiles(const float* first, int64_t pitch, bool transpose, int64_t rows, int64_t k,
                      float* HWY_RESTRICT out) {
  if (!transpose) {
    const hn::CappedTag<float, kTileRows> d;
    constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(d));
    for (int64_t i = 0; i < rows; i += kLanes) {
      const int64_t tile = i / kTileRows * kTileRows;
      TransposeRows(d, first + i * pitch, pitch, rows - i, k, kTileRows, out + tile * k + i - tile);
    }
    return;
  }
  // Eight rows of X at a time, so that reads and writes are both whole cache lines.
  constexpr int64_t kStep = 8;
  const int64_t whole = rows / kTileRows * kTileRows;
  for (int64_t p = 0; p < k; p += kStep) {
    for (int64_t i = 0; i < whole; i += kTileRows) {
      PackLeftColumns(first + p * pitch + i, pitch, std::min(kStep, k - p),
                      out + i * k + p * kTileRows);
    }
  }
  for (int64_t p = 0; p < k && whole < rows; ++p) {
    std::copy_n(first + p * pitch + whole, rows - whole, out + whole * k + p * kTileRows);
  }
}

}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_PACK_INL_H_
