// The loops around the innermost one: blocks of depth, blocks of rows, panels of columns, and the
// fetching of what comes next. Compiled once for each instruction set; include after
// foreach_target.h and highway.h.
#if defined(MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_BLOCK_INL_H_
#undef MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_BLOCK_INL_H_
#else
#define MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "core/backend/cpu/matrix_kernel.h"
#include "core/backend/cpu/matrix_kernel_pack-inl.h"
#include "core/backend/cpu/matrix_kernel_tile-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace meshfold::HWY_NAMESPACE {

using cpu::MatrixOperand;
using cpu::MatrixProduct;

// Blocks of the inner dimension: long enough that storing a tile costs little beside summing it,
// short enough that kMaxRowsUnblocked rows of A and a panel of B stay in the level-2 cache, and
// that chains of additions stay short.
inline constexpr int64_t kMaxDepth = 256;
static_assert(cpu::kMaxPartialDepth <= kMaxDepth);
// Up to this many rows B is packed panel by panel just before use, and never kept whole.
inline constexpr int64_t kMaxRowsUnblocked = 512;
// Where packing would not pay: B is read where it lies when its rows are f32 vectors already and no
// more rows of A than this share them, A^T when no more panels than this do.
inline constexpr int64_t kMaxRowsFarRight = 256, kMaxPanelsFarLeft = 12;
// Rows of A that pass under all panels of B together otherwise: kRowBlock x kMaxDepth elements of A
// stay in the level-2 cache.
inline constexpr int64_t kRowBlock = 256;
// Columns of B packed at a time.
inline constexpr int64_t kColBlock = 4096;

// Depth blocks of k: as few as kMaxDepth allows, of equal length. Part of every result's bits, so
// the same on every instruction set.
inline int64_t DepthBlock(int64_t k) {
  const int64_t blocks = (k + kMaxDepth - 1) / kMaxDepth;
  return blocks <= 1 ? k : ((k + blocks - 1) / blocks + 7) / 8 * 8;
}

inline int64_t RowBlock(int64_t m) { return m <= kMaxRowsUnblocked ? m : kRowBlock; }

inline int64_t PaddedRows(int64_t m) { return (m + kTileRows - 1) / kTileRows * kTileRows; }

inline int64_t PaddedColumns(int64_t n) {
  return (n + kFloatLanes - 1) / kFloatLanes * kFloatLanes;
}

// Columns [0, n) as panels of up to kTileVecs vectors, as equal as can be: a last panel of one
// vector alone would leave the multiply-add ports half idle.
class Panels {
 public:
  explicit Panels(int64_t n)
      : n_(n),
        vecs_((n + kFloatLanes - 1) / kFloatLanes),
        count_((vecs_ + kTileVecs - 1) / kTileVecs) {
    if (count_ == 0) return;
    narrow_ = vecs_ / count_;
    wide_count_ = vecs_ % count_;
  }
  int64_t count() const { return count_; }
  int64_t padded_columns() const { return vecs_ * kFloatLanes; }
  int64_t begin(int64_t i) const { return (i * narrow_ + std::min(i, wide_count_)) * kFloatLanes; }
  int64_t vecs(int64_t i) const { return narrow_ + (i < wide_count_ ? 1 : 0); }
  int64_t width(int64_t i) const { return vecs(i) * kFloatLanes; }
  int64_t cols(int64_t i) const { return std::min(width(i), n_ - begin(i)); }

 private:
  int64_t n_, vecs_, count_;
  int64_t narrow_ = 0, wide_count_ = 0;
};

// Cache lines that will be needed soon: `lines` from each of `rows` rows.
struct LineGrid {
  const char* base = nullptr;
  int64_t row_step = 0, rows = 0;  // bytes
  int64_t lines = 0;

  static constexpr int64_t kLineBytes = 64;
};

// Hands a grid out to tile after tile, down the rows and then along.
class LineWalk {
 public:
  // `tiles` tiles share the grid evenly; each has time for `max_lines` lines.
  LineWalk(const LineGrid& grid, int64_t tiles, int64_t max_lines)
      : grid_(grid), lines_left_(max_lines > 0 && grid.rows > 0 ? grid.lines : 0) {
    if (lines_left_ == 0) return;
    const int64_t tiles_per_line = std::max<int64_t>(1, tiles / grid.lines);
    slots_ = std::min(max_lines, (grid.rows + tiles_per_line - 1) / tiles_per_line);
  }

  LineStream Next() {
    if (lines_left_ == 0) return {grid_.base, 0, 0};
    const LineStream stream{grid_.base + row_ * grid_.row_step, grid_.row_step,
                            std::min(slots_, grid_.rows - row_)};
    row_ += slots_;
    if (row_ >= grid_.rows) {
      row_ = 0;
      grid_.base += LineGrid::kLineBytes;
      --lines_left_;
    }
    return stream;
  }

 private:
  LineGrid grid_;
  int64_t lines_left_, slots_ = 0, row_ = 0;
};

// `count` rows of `bytes` bytes each.
inline LineGrid LinesOfRows(const void* begin, int64_t count, int64_t pitch_bytes, int64_t bytes) {
  const int64_t lines = (bytes + LineGrid::kLineBytes - 1) / LineGrid::kLineBytes;
  const char* base = static_cast<const char*>(begin);
  // Rows with little between them are one run; others are walked across.
  if (bytes * 5 >= pitch_bytes * 4) return {base, LineGrid::kLineBytes, count * lines, 1};
  return {base, pitch_bytes, count, lines};
}

// The lines of rows [p0, p0 + k) and columns [c0, c0 + cols) of op(X).
inline LineGrid LinesOf(const MatrixOperand& x, int64_t p0, int64_t k, int64_t c0, int64_t cols) {
  const int64_t size = SizeOf(x.dtype);
  const int64_t row = x.transpose ? c0 : p0, col = x.transpose ? p0 : c0;
  const char* first = static_cast<const char*>(x.data) + (row * x.pitch + col) * size;
  return LinesOfRows(first, x.transpose ? cols : k, x.pitch * size,
                     (x.transpose ? k : cols) * size);
}

// A block of rows of A as tiles read it.
struct LeftBlock {
  const float* data;
  int64_t rows;
  int64_t step;         // TileArgs::a_step
  int64_t tile_stride;  // floats between tiles
  Left layout;
};

// Rows [m0, m0 + rows) and depth [p0, p0 + k) of A: packed before, or as they lie, or packed now:
// rows that are in conflict, and an A^T that is large and shared by many panels.
inline LeftBlock MakeLeftBlock(const MatrixProduct& product, int64_t m0, int64_t rows, int64_t p0,
                               int64_t k, int64_t num_panels, float* scratch) {
  const MatrixOperand& a = product.a;
  const float* x = static_cast<const float*>(a.data);
  const int64_t tile_stride = kTileRows * k;
  if (a.packed) {
    return {x + p0 * PaddedRows(a.rows) + (a.first_row + m0) * k, rows, kTileRows, tile_stride,
            Left::kPacked};
  }
  const float* first = a.transpose ? x + p0 * a.pitch + m0 : x + m0 * a.pitch + p0;
  if (a.transpose && product.b.packed && a.pitch <= cpu::kDirectPitch) {
    return {first, rows, a.pitch, kTileRows, Left::kPacked};
  }
  if (a.transpose && num_panels <= kMaxPanelsFarLeft) {
    return {first, rows, a.pitch, kTileRows, Left::kFarColumns};
  }
  if (!a.transpose && a.pitch % cpu::kConflictFloats != 0) {  // as PrepareLeftRows promises
    return {first, rows, a.pitch, kTileRows * a.pitch, Left::kRows};
  }
  PackTiles(first, a.pitch, a.transpose, rows, k, scratch);
  return {scratch, rows, kTileRows, tile_stride, Left::kPacked};
}

// Adds or stores a tile whose last vector is cut by the right edge of the result.
inline void StoreEdge(const float* tile, int64_t tile_pitch, int64_t rows, int64_t cols, float* out,
                      int64_t out_pitch, bool accumulate) {
  for (int64_t i = 0; i < rows; ++i, tile += tile_pitch, out += out_pitch) {
    for (int64_t c = 0; c < cols; ++c) out[c] = accumulate ? out[c] + tile[c] : tile[c];
  }
}

// Rows of one panel of the result: `tile` describes the first tile.
template <Left kLeft, Right kRight>
inline void MultiplyPanel(const LeftBlock& left, int64_t vecs, int64_t cols,
                          const LineGrid& next_panel, TileArgs tile) {
  HWY_ALIGN float edge[kTileRows * kTileVecs * kFloatLanes];
  const bool is_edge = cols < vecs * kFloatLanes;
  const TileFunction whole = SelectTile<kLeft, kRight>(kTileRows, vecs);
  LineWalk fetches(next_panel, (left.rows + kTileRows - 1) / kTileRows,
                   MaxLinesPerTile(tile.k, vecs));
  tile.a = left.data;
  tile.a_step = left.step;
  for (int64_t i = 0; i < left.rows; i += kTileRows) {
    const int64_t tile_rows = std::min<int64_t>(kTileRows, left.rows - i);
    const TileFunction run =
        tile_rows == kTileRows ? whole : SelectTile<kLeft, kRight>(tile_rows, vecs);
    tile.fetch = fetches.Next();
    if (!is_edge) {
      run(tile);
    } else {
      TileArgs cut = tile;
      cut.out = edge;
      cut.out_pitch = vecs * kFloatLanes;
      cut.accumulate = false;
      run(cut);
      StoreEdge(edge, cut.out_pitch, tile_rows, cols, tile.out, tile.out_pitch, tile.accumulate);
    }
    tile.a += left.tile_stride;
    tile.out += kTileRows * tile.out_pitch;
  }
}

inline void MultiplyPanelPacked(const LeftBlock& left, int64_t vecs, int64_t cols,
                                const LineGrid& next_panel, const TileArgs& tile) {
  switch (left.layout) {
    case Left::kPacked:
      return MultiplyPanel<Left::kPacked, Right::kPacked>(left, vecs, cols, next_panel, tile);
    case Left::kRows:
      return MultiplyPanel<Left::kRows, Right::kPacked>(left, vecs, cols, next_panel, tile);
    case Left::kFarColumns:
      return MultiplyPanel<Left::kFarColumns, Right::kPacked>(left, vecs, cols, next_panel, tile);
  }
}

// Not for kFarColumns: two far operands would fetch more lines than a core keeps in flight.
inline void MultiplyPanelFar(const LeftBlock& left, int64_t vecs, int64_t cols,
                             const LineGrid& next_panel, const TileArgs& tile) {
  if (left.layout == Left::kRows) {
    return MultiplyPanel<Left::kRows, Right::kFar>(left, vecs, cols, next_panel, tile);
  }
  MultiplyPanel<Left::kPacked, Right::kFar>(left, vecs, cols, next_panel, tile);
}

// One depth block of one column block of a product, and where the panels of B for it are, or go.
struct ColumnBlock {
  int64_t n0, n, p0, k;
  float* panels;
  int64_t panel_depth;  // rows of a panel; 0: all panels go to one place

  float* panel(int64_t begin, int64_t width, const MatrixOperand& b) const {
    return panels + begin * panel_depth + (b.packed ? b.first_row * width : 0);
  }
};

// What panel i of B will be read from: its source if it is packed in this pass, else where it is.
inline LineGrid LinesOfPanel(const MatrixProduct& p, const ColumnBlock& c, const Panels& panels,
                             int64_t i, bool packs) {
  const int64_t begin = panels.begin(i);
  if (packs) return LinesOf(p.b, c.p0, c.k, c.n0 + begin, panels.cols(i));
  return LinesOfRows(c.panel(begin, panels.width(i), p.b), 1, 0, panels.width(i) * c.k * 4);
}

inline void MultiplyRows(const MatrixProduct& p, const ColumnBlock& c, const Panels& panels,
                         int64_t m0, float* left_scratch) {
  const int64_t rows = std::min(RowBlock(p.m), p.m - m0);
  const LeftBlock left = MakeLeftBlock(p, m0, rows, c.p0, c.k, panels.count(), left_scratch);
  const bool packs = !p.b.packed && m0 == 0;
  const bool is_right_far = left.layout != Left::kFarColumns && !p.b.packed && !p.b.transpose &&
                            p.b.dtype == DType::kF32 && p.m <= kMaxRowsFarRight;
  for (int64_t i = 0; i < panels.count() && panels.begin(i) < c.n; ++i) {
    const int64_t c0 = c.n0 + panels.begin(i), cols = panels.cols(i), width = panels.width(i);
    LineGrid next;
    if (i + 1 < panels.count()) next = LinesOfPanel(p, c, panels, i + 1, packs);
    TileArgs tile{nullptr,
                  0,
                  c.panel(panels.begin(i), width, p.b),
                  width,
                  c.k,
                  p.out + m0 * p.out_pitch + c0,
                  p.out_pitch,
                  p.accumulate || c.p0 > 0,
                  {}};
    if (is_right_far && cols == width) {
      tile.b = static_cast<const float*>(p.b.data) + c.p0 * p.b.pitch + c0;
      tile.b_step = p.b.pitch;
      MultiplyPanelFar(left, panels.vecs(i), cols, next, tile);
    } else {
      if (packs) {
        PackPanel(p.b, c.p0, c.k, c0, cols, width, c.panel(panels.begin(i), width, p.b));
      }
      MultiplyPanelPacked(left, panels.vecs(i), cols, next, tile);
    }
  }
}

// Columns [n0, n0 + n) of the result; `right_scratch` has room for their panels of B.
inline void MultiplyColumns(const MatrixProduct& p, int64_t n0, int64_t n, float* right_scratch,
                            float* left_scratch) {
  const Panels panels(p.b.packed ? std::max(n, p.b.cols) : n);
  const bool is_partial = p.b.packed && p.k != p.b.rows;
  const int64_t depth = is_partial ? p.k : DepthBlock(p.k);
  for (int64_t p0 = 0; p0 < p.k; p0 += depth) {
    const int64_t k = std::min(depth, p.k - p0);
    ColumnBlock block{n0, n, p0, k, right_scratch, RowBlock(p.m) < p.m ? k : 0};
    if (p.b.packed) {
      block.panels =
          static_cast<float*>(const_cast<void*>(p.b.data)) + p0 * panels.padded_columns();
      block.panel_depth = is_partial ? p.b.rows : k;
    }
    for (int64_t m0 = 0; m0 < p.m; m0 += RowBlock(p.m)) {
      MultiplyRows(p, block, panels, m0, left_scratch);
    }
  }
}

}  // namespace meshfold::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MESHFOLD_CORE_BACKEND_CPU_MATRIX_KERNEL_BLOCK_INL_H_
