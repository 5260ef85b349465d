#include "tests/testing/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/base/check.h"
#include "core/base/rng.h"

namespace meshfold::testing {
namespace {

// No multiple of a vector, so that rows start at every alignment.
constexpr int64_t kGuardElements = 3;

// Calls visit(T{}) with the element type of `dtype`.
template <typename F>
void VisitType(DType dtype, F&& visit) {
  switch (dtype) {
    case DType::kF32:
      return visit(float{});
    case DType::kBF16:
      return visit(BF16{});
    case DType::kF16:
      return visit(F16{});
    case DType::kF64:
      return visit(double{});
    case DType::kI32:
      return visit(int32_t{});
    case DType::kI64:
      return visit(int64_t{});
    case DType::kU8:
      return visit(uint8_t{});
  }
}

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_same_v<T, BF16>) {
    return ToBF16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, F16>) {
    return ToF16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
T Guard() {
  if constexpr (std::is_integral_v<T>) {
    return std::numeric_limits<T>::min();
  } else {
    return FromDouble<T>(std::numeric_limits<double>::quiet_NaN());
  }
}

}  // namespace

Tensor UnwrittenTensor(const Shape& shape, DType dtype, Padding padding) {
  const int64_t pitch = shape.cols() + (padding == Padding::kGuarded ? kGuardElements : 0);
  const Tensor storage = Tensor::Contiguous({shape.rows() * pitch}, dtype);
  VisitType(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(storage.data<T>(), storage.numel(), Guard<T>());
  });
  return Tensor::FromStorage(storage.storage(), shape, dtype, 0, pitch);
}

Tensor MakeTensor(const std::vector<double>& values, const Shape& shape, DType dtype,
                  Padding padding) {
  MF_CHECK_EQ(static_cast<int64_t>(values.size()), shape.numel());
  const Tensor tensor = UnwrittenTensor(shape, dtype, padding);
  VisitType(dtype, [&](auto zero) {
    using T = decltype(zero);
    ForEachPiece<T>(tensor, 0, tensor.numel(), [&](T* piece, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) piece[i] = FromDouble<T>(values[first + i]);
    });
  });
  return tensor;
}

Tensor MakeIds(const std::vector<int32_t>& values, const Shape& shape, Padding padding) {
  return MakeTensor(std::vector<double>(values.begin(), values.end()), shape, DType::kI32, padding);
}

Tensor RandomTensor(absl::string_view name, const Shape& shape, const RandomOptions& options) {
  const RngKey key = MakeRngKey(20240521, name);
  std::vector<float> values(shape.numel());
  FillNormal(key, 0, static_cast<float>(options.mean), static_cast<float>(options.stddev),
             absl::MakeSpan(values));
  return MakeTensor(std::vector<double>(values.begin(), values.end()), shape, options.dtype,
                    options.padding);
}

Tensor RandomIds(absl::string_view name, const Shape& shape, int32_t low, int32_t high,
                 Padding padding) {
  const RngKey key = MakeRngKey(20240521, name);
  std::vector<int32_t> values(shape.numel());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = low + static_cast<int32_t>(UniformIntAt(key, i, static_cast<uint64_t>(high - low)));
  }
  return MakeIds(values, shape, padding);
}

Tensor WithPadding(const Tensor& tensor, Padding padding) {
  const Tensor copy = UnwrittenTensor(tensor.shape(), tensor.dtype(), padding);
  VisitType(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (int64_t row = 0; row < tensor.rows(); ++row) {
      std::copy_n(tensor.row<T>(row), tensor.cols(), copy.row<T>(row));
    }
  });
  return copy;
}

bool GuardIsIntact(const Tensor& tensor) {
  bool intact = true;
  VisitType(tensor.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t cols = tensor.cols();
    const std::vector<T> guard(tensor.pitch() - cols, Guard<T>());
    for (int64_t row = 0; row < tensor.rows() && !guard.empty(); ++row) {
      intact = intact &&
               std::memcmp(tensor.row<T>(row) + cols, guard.data(), guard.size() * sizeof(T)) == 0;
    }
  });
  return intact;
}

}  // namespace meshfold::testing
