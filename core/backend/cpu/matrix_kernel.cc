#include "core/backend/cpu/matrix_kernel.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/parallel_for.h"
#include "core/base/status_macros.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/backend/cpu/matrix_kernel.cc"
#include "hwy/foreach_target.h"  // before highway.h
//
#include "core/backend/cpu/matrix_kernel_block-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {
namespace {

int64_t RightScratchFloats(int64_t m, int64_t n, int64_t k) {
  if (m <= kMaxRowsUnblocked) return kTileVecs * kFloatLanes * DepthBlock(k);
  return Panels(std::min(n, kColBlock)).padded_columns() * DepthBlock(k);
}

int64_t ScratchFloatsOn(int64_t m, int64_t n, int64_t k) {
  return RightScratchFloats(m, n, k) + PaddedRows(RowBlock(m)) * DepthBlock(k);
}

void MultiplyOn(const MatrixProduct& p, float* scratch) {
  float* left_scratch = scratch + RightScratchFloats(p.m, p.n, p.k);
  if (p.b.packed) return MultiplyColumns(p, 0, p.n, nullptr, left_scratch);
  for (int64_t n0 = 0; n0 < p.n; n0 += kColBlock) {
    MultiplyColumns(p, n0, std::min(kColBlock, p.n - n0), scratch, left_scratch);
  }
}

int64_t PackedLeftFloatsOn(int64_t m, int64_t k) { return PaddedRows(m) * k; }

void PackLeftOn(const MatrixOperand& a, int64_t m, int64_t k, float* packed) {
  const float* x = static_cast<const float*>(a.data);
  const int64_t depth = DepthBlock(k);
  for (int64_t p0 = 0; p0 < k; p0 += depth) {
    PackTiles(a.transpose ? x + p0 * a.pitch : x + p0, a.pitch, a.transpose, m,
              std::min(depth, k - p0), packed + p0 * PaddedRows(m));
  }
}

int64_t PaddedColumnsOn(int64_t n) { return PaddedColumns(n); }

void PackRightOn(const MatrixOperand& b, int64_t k, int64_t n, float* packed) {
  const Panels panels(n);
  const int64_t depth = DepthBlock(k);
  for (int64_t p0 = 0; p0 < k; p0 += depth) {
    const int64_t block = std::min(depth, k - p0);
    for (int64_t i = 0; i < panels.count(); ++i) {
      PackPanel(b, p0, block, panels.begin(i), panels.cols(i), panels.width(i),
                packed + p0 * panels.padded_columns() + panels.begin(i) * block);
    }
  }
}

}  // namespace
}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshfold {
namespace {

HWY_EXPORT(MultiplyOn);
HWY_EXPORT(ScratchFloatsOn);
HWY_EXPORT(PackLeftOn);
HWY_EXPORT(PackedLeftFloatsOn);
HWY_EXPORT(PackRightOn);
HWY_EXPORT(PaddedColumnsOn);

}  // namespace

namespace cpu {
namespace {

// Writes the result when there is nothing to sum; true when that was so.
bool MultiplyEmpty(const MatrixProduct& p) {
  MF_CHECK(p.a.dtype == DType::kF32) << " left operand is " << DTypeName(p.a.dtype);
  MF_CHECK(!p.a.packed || (p.k == p.a.cols && p.a.first_row % kPackedRowUnit == 0 &&
                           p.a.first_row + p.m <= p.a.rows));
  MF_CHECK(!p.b.packed || p.k == p.b.rows ||
           (p.b.rows <= kMaxPartialDepth && p.b.first_row + p.k <= p.b.rows));
  MF_CHECK(!p.b.packed || p.n <= PaddedColumns(p.b.cols));
  if (p.m > 0 && p.n > 0 && p.k > 0) return false;
  for (int64_t i = 0; i < p.m && !p.accumulate; ++i) {
    std::fill_n(p.out + i * p.out_pitch, p.n, 0.0f);
  }
  return true;
}

const void* Advance(const MatrixOperand& x, int64_t elements) {
  return static_cast<const char*>(x.data) + elements * SizeOf(x.dtype);
}

// Rows, or columns, [begin, end) of the result.
MatrixProduct PartOf(const MatrixProduct& product, bool by_rows, int64_t begin, int64_t end) {
  MatrixProduct p = product;
  if (by_rows) {
    p.m = end - begin;
    p.a.data = Advance(p.a, begin * (p.a.transpose ? 1 : p.a.pitch));
    p.out += begin * p.out_pitch;
  } else {
    p.n = end - begin;
    p.b.data = Advance(p.b, begin * (p.b.transpose ? p.b.pitch : 1));
    p.out += begin;
  }
  return p;
}

}  // namespace

void Multiply(const MatrixProduct& product, float* scratch) {
  if (MultiplyEmpty(product)) return;
  HWY_DYNAMIC_DISPATCH(MultiplyOn)(product, scratch);
}

int64_t MultiplyScratchFloats(int64_t m, int64_t n, int64_t k) {
  return m > 0 && n > 0 && k > 0 ? HWY_DYNAMIC_DISPATCH(ScratchFloatsOn)(m, n, k) : 0;
}

void MultiplyParallel(const MatrixProduct& product, int num_threads, Allocator& allocator) {
  // Below this many multiply-adds a second thread's wake-up costs more than it brings.
  constexpr int64_t kMinPerThread = 1 << 20;
  // Parts end at multiples of 48 columns or rows: whole panels and tiles on every instruction set.
  constexpr int64_t kUnit = 48;
  const int64_t work = product.m * product.n * product.k;
  const bool by_rows = product.m >= product.n;
  const int64_t extent = by_rows ? product.m : product.n;
  const int64_t units = (extent + kUnit - 1) / kUnit;
  const int64_t parts =
      std::clamp<int64_t>(std::min(work / kMinPerThread, units), 1, std::max(num_threads, 1));
  ParallelForDynamic(parts, num_threads, [&](int64_t part) {
    const MatrixProduct p = PartOf(product, by_rows, std::min(units * part / parts * kUnit, extent),
                                   std::min(units * (part + 1) / parts * kUnit, extent));
    Scratch scratch(MultiplyScratchFloats(p.m, p.n, p.k), allocator);
    Multiply(p, scratch.data());
  });
}

MatrixOperand PackLeft(const MatrixOperand& a, int64_t m, int64_t k, float* packed) {
  MF_CHECK(a.dtype == DType::kF32 && !a.packed) << " left operand is " << DTypeName(a.dtype);
  if (m > 0 && k > 0) HWY_DYNAMIC_DISPATCH(PackLeftOn)(a, m, k, packed);
  return {packed, 0, false, DType::kF32, true, m, k};
}

MatrixOperand PrepareLeftRows(const MatrixOperand& a, int64_t m, int64_t k, float* packed) {
  MF_CHECK(!a.transpose);
  return a.pitch % kConflictFloats != 0 ? a : PackLeft(a, m, k, packed);
}

MatrixOperand FromRow(MatrixOperand a, int64_t row) {
  if (a.packed) {
    a.first_row += row;
  } else {
    a.data = Advance(a, row * a.pitch);
  }
  return a;
}

MatrixOperand PackRight(const MatrixOperand& b, int64_t k, int64_t n, float* packed) {
  if (n > 0 && k > 0) HWY_DYNAMIC_DISPATCH(PackRightOn)(b, k, n, packed);
  return {packed, 0, false, DType::kF32, true, k, n};
}

int64_t PackedLeftFloats(int64_t m, int64_t k) {
  return HWY_DYNAMIC_DISPATCH(PackedLeftFloatsOn)(m, k);
}

int64_t PackedRightFloats(int64_t k, int64_t n) { return PaddedColumns(n) * k; }

int64_t PaddedColumns(int64_t n) { return HWY_DYNAMIC_DISPATCH(PaddedColumnsOn)(n); }

Scratch::Scratch(int64_t floats, Allocator& allocator)
    : allocator_(allocator),
      bytes_(floats * static_cast<int64_t>(sizeof(float))),
      data_(static_cast<float*>(ValueOrThrow(allocator.Allocate(bytes_)))) {}

Scratch::~Scratch() { allocator_.Free(data_, bytes_); }

}  // namespace cpu
}  // namespace meshfold
#endif  // HWY_ONCE
