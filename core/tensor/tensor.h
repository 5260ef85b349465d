// Tensor: a row-major value handle over shared Storage.
//
// A tensor is rows() rows of cols() contiguous elements; consecutive rows start pitch() elements
// apart. The pitch is padded where a row would span a multiple of 1 KiB, since equal power-of-two
// strides map the rows of a GEMM operand to the same cache sets (measured: 30 % of the GEMM rate).
// Everything outside kernels sees logical elements only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "core/tensor/shape.h"
#include "core/tensor/storage.h"

namespace meshfold {

// The pitch that Tensor::Empty gives rows of `cols` elements: cols, or cols + 64 bytes' worth when
// a row is a multiple of 1 KiB.
int64_t PaddedPitch(int64_t cols, DType dtype);

// Copies share storage, as in NumPy; Clone copies elements. A const Tensor is a constant handle to
// memory that may be written: kernels take outputs as `const Tensor&` too.
class Tensor {
 public:
  // Undefined: no storage, no shape.
  Tensor() = default;

  // New uninitialised tensors from the current context's allocator; StatusError
  // (ResourceExhausted) when the pool is full. Empty pads the row pitch, Contiguous does not.
  static Tensor Empty(const Shape& shape, DType dtype = DType::kF32);
  static Tensor Contiguous(const Shape& shape, DType dtype = DType::kF32);
  static Tensor Empty(const Shape& shape, DType dtype, Allocator& allocator);
  static Tensor Contiguous(const Shape& shape, DType dtype, Allocator& allocator);

  // A view of `storage` starting `offset` elements in; it must lie within the storage.
  static Tensor FromStorage(std::shared_ptr<Storage> storage, const Shape& shape, DType dtype,
                            int64_t offset, int64_t pitch);

  bool defined() const { return storage_ != nullptr; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  int rank() const { return shape_.rank(); }
  int64_t dim(int i) const { return shape_[i]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t rows() const { return shape_.rows(); }
  int64_t cols() const { return shape_.cols(); }
  int64_t pitch() const { return pitch_; }  // elements between row starts
  int64_t offset() const { return offset_; }
  // Bytes of the logical elements (padding not counted).
  int64_t nbytes() const { return numel() * SizeOf(dtype_); }
  bool IsContiguous() const { return pitch_ == cols() || rows() <= 1; }
  DeviceKind device() const { return storage_->device(); }
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  // Address of the first element, or of row `r`'s. Device memory unless device() is kHost.
  // Inline, since loops over rows ask for every row.
  void* raw() const {
    if (!defined()) FailUndefined();
    return static_cast<char*>(storage_->data()) + offset_ * SizeOf(dtype_);
  }
  template <typename T>
  T* data() const {
    if (dtype_ != DTypeOf<T>::value) FailType(DTypeOf<T>::value);
    return static_cast<T*>(raw());
  }
  template <typename T>
  T* row(int64_t r) const {
    return data<T>() + r * pitch_;
  }
  // The elements as one span; IsContiguous() is required.
  template <typename T>
  absl::Span<T> span() const {
    CheckContiguous();
    return absl::Span<T>(data<T>(), numel());
  }

  // Same elements under another shape: any shape when contiguous, else the last dim must stay.
  Tensor Reshape(const Shape& shape) const;
  // Rows [begin, begin + count) of dim 0.
  Tensor Narrow(int64_t begin, int64_t count) const;
  // Columns [begin, begin + count) of the last dim.
  Tensor NarrowCols(int64_t begin, int64_t count) const;
  // Entry `i` of dim 0, without that dim.
  Tensor Select(int64_t i) const;
  // The tensor as a [rows(), cols()] matrix.
  Tensor AsMatrix() const { return Reshape({rows(), cols()}); }

  // "f32 [2, 3]" for messages.
  std::string ToString() const;

 private:
  [[noreturn]] static void FailUndefined();
  [[noreturn]] void FailType(DType wanted) const;
  void CheckContiguous() const;

  std::shared_ptr<Storage> storage_;
  Shape shape_;
  DType dtype_ = DType::kF32;
  int64_t offset_ = 0;
  int64_t pitch_ = 0;
};

// Host-side helpers, for tests, files and small metadata (contiguous host tensors).
template <typename T>
Tensor TensorFromVector(const std::vector<T>& values, const Shape& shape);

// Copies the logical elements of a host tensor in row-major order, converting to T.
template <typename T>
std::vector<T> ToVector(const Tensor& tensor);

// Calls body(pointer, first_logical_index, count) for each maximal contiguous piece of the logical
// flat interval [begin, end): how flat shards and buckets walk padded rows.
template <typename T, typename F>
void ForEachPiece(const Tensor& tensor, int64_t begin, int64_t end, F&& body) {
  if (begin >= end) return;
  if (tensor.IsContiguous()) {
    body(tensor.data<T>() + begin, begin, end - begin);
    return;
  }
  int64_t cols = tensor.cols();
  for (int64_t at = begin; at < end;) {
    int64_t row = at / cols, col = at % cols;
    int64_t count = cols - col < end - at ? cols - col : end - at;
    body(tensor.row<T>(row) + col, at, count);
    at += count;
  }
}

}  // namespace meshfold
