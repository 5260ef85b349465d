// Matrix products of the CPU backend: Gemm, the experts, attention and the loss head all end here.
//
// Own microkernels instead of oneDNN's sgemm, for four reasons. Every element of a product is one
// fixed chain of fused multiply-adds over k, so its bits depend on its row of A and column of B
// alone: not on how many rows stand beside it, on tiles, on the number of threads, nor on the
// vector width. Row pitches do not matter, because operands are packed on the way. 16-bit weights
// are converted while they are packed. And products with a short inner dimension (attention heads)
// run near the full rate.
//
// Method: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with
// the roles of A and B exchanged, since our matrices are row-major: B is packed into panels of a
// few vectors, A into tiles of a few rows whose elements are broadcast.
#pragma once

#include <cstdint>

#include "core/tensor/allocator.h"
#include "core/tensor/dtype.h"

namespace meshfold::cpu {

// op(X) of a row-major X, or an operand that PackLeft or PackRight has packed.
struct MatrixOperand {
  const void* data = nullptr;
  int64_t pitch = 0;  // elements between rows of X
  bool transpose = false;
  DType dtype = DType::kF32;  // only B may be bf16 or f16
  // Of a packed operand, in place of pitch, transpose and dtype: its extents, and the first of its
  // rows that a product reads.
  bool packed = false;
  int64_t rows = 0, cols = 0, first_row = 0;
};

// Packed operands may be used in part. A: rows from a multiple of kPackedRowUnit on. B: any run of
// rows if it has at most kMaxPartialDepth of them. Of B's columns a product may take the first n
// only, or n rounded up to whole vectors (PaddedColumns), which stores faster: then columns past
// those asked for are stored too, at most kMaxPanel of them, with values of no meaning.
inline constexpr int64_t kPackedRowUnit = 8, kMaxPartialDepth = 256, kMaxPanel = 48;

// out [m, n] = A [m, k] B [k, n], added to what is there with `accumulate`. `out` overlaps neither.
struct MatrixProduct {
  MatrixOperand a;
  MatrixOperand b;
  float* out = nullptr;
  int64_t out_pitch = 0;
  int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
};

// Computes `product` on the calling thread. `scratch` has MultiplyScratchFloats(m, n, k) floats and
// is aligned to 64 bytes, as all packed operands. It is not used when B is packed and A is packed
// or transposed with a pitch of at most kDirectPitch: such an A is read as it lies.
void Multiply(const MatrixProduct& product, float* scratch);
int64_t MultiplyScratchFloats(int64_t m, int64_t n, int64_t k);
inline constexpr int64_t kDirectPitch = 512;

// Computes `product` on up to `num_threads` threads with scratch from `allocator`. Same bits for
// any number of threads. Operands are not packed.
void MultiplyParallel(const MatrixProduct& product, int num_threads, Allocator& allocator);

// Operands packed once for several products. PackLeft takes A [m, k] in f32, PackRight B [k, n].
MatrixOperand PackLeft(const MatrixOperand& a, int64_t m, int64_t k, float* packed);
MatrixOperand PackRight(const MatrixOperand& b, int64_t k, int64_t n, float* packed);
int64_t PackedLeftFloats(int64_t m, int64_t k);
// Rows A [m, k] as several products read them best: as they lie, or packed where their pitch is a
// multiple of kConflictFloats, so that they would fall into few sets of a cache. Products of such
// rows and a packed B need no scratch.
inline constexpr int64_t kConflictFloats = 256;
MatrixOperand PrepareLeftRows(const MatrixOperand& a, int64_t m, int64_t k, float* packed);
// A left operand from `row`, a multiple of kPackedRowUnit, on.
MatrixOperand FromRow(MatrixOperand a, int64_t row);
int64_t PackedRightFloats(int64_t k, int64_t n);

// n rounded up to whole vectors. A right operand packed for n columns is packed for this many.
int64_t PaddedColumns(int64_t n);

// A block of f32 scratch from an allocator, for the life of the object; aligned to 64 bytes.
// StatusError when the pool is full.
class Scratch {
 public:
  Scratch(int64_t floats, Allocator& allocator);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  float* data() const { return data_; }

 private:
  Allocator& allocator_;
  int64_t bytes_;
  float* data_;
};

}  // namespace meshfold::cpu
