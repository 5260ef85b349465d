#include "core/tensor/tensor.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

Tensor Make(const Shape& shape, DType dtype, int64_t pitch, Allocator& allocator) {
  for (int64_t extent : shape.dims()) {
    if (extent < 0)
      ThrowInvalidArgument(absl::StrCat("[Tensor] negative extent in ", shape.ToString()));
  }
  int64_t bytes = shape.rows() * pitch * SizeOf(dtype);
  return Tensor::FromStorage(ValueOrThrow(Storage::Allocate(bytes, allocator)), shape, dtype, 0,
                             pitch);
}

template <typename From, typename To>
To Convert(From value) {
  if constexpr (std::is_same_v<From, BF16> || std::is_same_v<From, F16>) {
    return static_cast<To>(ToFloat(value));
  } else {
    return static_cast<To>(value);
  }
}

template <typename From, typename To>
void AppendRows(const Tensor& tensor, std::vector<To>& out) {
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    const From* row = tensor.row<From>(r);
    for (int64_t c = 0; c < tensor.cols(); ++c) out.push_back(Convert<From, To>(row[c]));
  }
}

}  // namespace

int64_t PaddedPitch(int64_t cols, DType dtype) {
  constexpr int64_t kBadStride = 1024, kPadBytes = 64;
  int64_t bytes = cols * SizeOf(dtype);
  if (bytes == 0 || bytes % kBadStride != 0) return cols;
  return cols + kPadBytes / SizeOf(dtype);
}

Tensor Tensor::Empty(const Shape& shape, DType dtype) {
  return Empty(shape, dtype, *CurrentContext().allocator);
}

Tensor Tensor::Contiguous(const Shape& shape, DType dtype) {
  return Contiguous(shape, dtype, *CurrentContext().allocator);
}

Tensor Tensor::Empty(const Shape& shape, DType dtype, Allocator& allocator) {
  int64_t pitch = shape.rows() > 1 ? PaddedPitch(shape.cols(), dtype) : shape.cols();
  return Make(shape, dtype, pitch, allocator);
}

Tensor Tensor::Contiguous(const Shape& shape, DType dtype, Allocator& allocator) {
  return Make(shape, dtype, shape.cols(), allocator);
}

Tensor Tensor::FromStorage(std::shared_ptr<Storage> storage, const Shape& shape, DType dtype,
                           int64_t offset, int64_t pitch) {
  const int64_t rows = shape.rows(), cols = shape.cols();
  const int64_t end = offset + (rows > 0 ? (rows - 1) * pitch + cols : 0);
  MF_CHECK(offset >= 0 && end * SizeOf(dtype) <= storage->bytes() && (rows <= 1 || pitch >= cols))
      << " " << shape << " at " << offset << " with pitch " << pitch << " in " << storage->bytes()
      << " bytes";
  Tensor tensor;
  tensor.storage_ = std::move(storage);
  tensor.shape_ = shape;
  tensor.dtype_ = dtype;
  tensor.offset_ = offset;
  tensor.pitch_ = pitch;
  return tensor;
}

Tensor Tensor::Reshape(const Shape& shape) const {
  MF_CHECK_EQ(shape.numel(), numel()) << shape_ << " to " << shape;
  Tensor result = *this;
  result.shape_ = shape;
  if (shape.cols() == cols()) return result;
  MF_CHECK(IsContiguous()) << " reshape of padded rows " << shape_ << " to " << shape;
  result.pitch_ = shape.cols();
  return result;
}

Tensor Tensor::Narrow(int64_t begin, int64_t count) const {
  MF_CHECK_GE(rank(), 1);
  MF_CHECK(begin >= 0 && count >= 0 && begin + count <= dim(0))
      << " rows [" << begin << ", " << begin + count << ") of " << shape_;
  Tensor result = *this;
  result.shape_.set(0, count);
  int64_t rows_per_entry = rank() == 1 ? 0 : (dim(0) == 0 ? 0 : rows() / dim(0));
  result.offset_ += rank() == 1 ? begin : begin * rows_per_entry * pitch_;
  if (rank() == 1) result.pitch_ = count;
  return result;
}

Tensor Tensor::NarrowCols(int64_t begin, int64_t count) const {
  MF_CHECK(begin >= 0 && count >= 0 && begin + count <= cols())
      << " columns [" << begin << ", " << begin + count << ") of " << shape_;
  Tensor result = *this;
  result.shape_.set(-1, count);
  result.offset_ += begin;
  return result;
}

Tensor Tensor::Select(int64_t i) const {
  Tensor result = Narrow(i, 1);
  result.shape_ = Shape(shape_.dims().subspan(1));
  if (result.rank() == 0) result.pitch_ = 1;
  return result;
}

std::string Tensor::ToString() const {
  return defined() ? absl::StrCat(DTypeName(dtype_), " ", shape_.ToString()) : "undefined";
}

void Tensor::FailUndefined() {
  internal::CheckFailed(__FILE__, __LINE__, "defined()", " undefined tensor");
}

void Tensor::FailType(DType wanted) const {
  internal::CheckFailed(__FILE__, __LINE__, "dtype() == wanted",
                        absl::StrCat(" tensor is ", ToString(), ", read as ", DTypeName(wanted)));
}

void Tensor::CheckContiguous() const {
  MF_CHECK(IsContiguous()) << " " << ToString() << " has pitch " << pitch_;
}

template <typename T>
Tensor TensorFromVector(const std::vector<T>& values, const Shape& shape) {
  MF_CHECK_EQ(static_cast<int64_t>(values.size()), shape.numel()) << shape;
  Tensor tensor = Tensor::Empty(shape, DTypeOf<T>::value);
  for (int64_t r = 0; r < tensor.rows() && tensor.cols() > 0; ++r) {
    std::memcpy(tensor.row<T>(r), values.data() + r * tensor.cols(), tensor.cols() * sizeof(T));
  }
  return tensor;
}

template <typename T>
std::vector<T> ToVector(const Tensor& tensor) {
  std::vector<T> out;
  out.reserve(tensor.numel());
  switch (tensor.dtype()) {
    case DType::kF32:
      AppendRows<float, T>(tensor, out);
      break;
    case DType::kBF16:
      AppendRows<BF16, T>(tensor, out);
      break;
    case DType::kF16:
      AppendRows<F16, T>(tensor, out);
      break;
    case DType::kF64:
      AppendRows<double, T>(tensor, out);
      break;
    case DType::kI32:
      AppendRows<int32_t, T>(tensor, out);
      break;
    case DType::kI64:
      AppendRows<int64_t, T>(tensor, out);
      break;
    case DType::kU8:
      AppendRows<uint8_t, T>(tensor, out);
      break;
  }
  return out;
}

template Tensor TensorFromVector<float>(const std::vector<float>&, const Shape&);
template Tensor TensorFromVector<double>(const std::vector<double>&, const Shape&);
template Tensor TensorFromVector<int32_t>(const std::vector<int32_t>&, const Shape&);
template Tensor TensorFromVector<int64_t>(const std::vector<int64_t>&, const Shape&);
template Tensor TensorFromVector<uint8_t>(const std::vector<uint8_t>&, const Shape&);
template std::vector<float> ToVector<float>(const Tensor&);
template std::vector<double> ToVector<double>(const Tensor&);
template std::vector<int32_t> ToVector<int32_t>(const Tensor&);
template std::vector<int64_t> ToVector<int64_t>(const Tensor&);
template std::vector<uint8_t> ToVector<uint8_t>(const Tensor&);

}  // namespace meshfold
