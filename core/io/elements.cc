#include "core/io/elements.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

template <typename T>
constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, BF16> || std::is_same_v<T, F16>;

template <typename T>
T Load(const char* src, int64_t i) {
  T value;
  std::memcpy(&value, src + i * sizeof(T), sizeof(T));
  return value;
}

template <typename From, typename To>
To ConvertFloat(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_same_v<From, BF16> || std::is_same_v<From, F16>) {
    return ConvertFloat<float, To>(ToFloat(value));
  } else if constexpr (std::is_same_v<To, BF16>) {
    return ToBF16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, F16>) {
    return ToF16(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

// Converts `count` elements; neither side need be aligned.
template <typename From, typename To>
absl::Status ConvertRow(const char* src, char* dst, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From from = Load<From>(src, i);
    To to;
    if constexpr (kIsFloat<From>) {
      to = ConvertFloat<From, To>(from);
    } else {
      if (!std::in_range<To>(from)) {
        return absl::OutOfRangeError(
            absl::StrCat("the integer ", from, " does not fit into ", sizeof(To) * 8, " bits"));
      }
      to = static_cast<To>(from);
    }
    std::memcpy(dst + i * sizeof(To), &to, sizeof(To));
  }
  return absl::OkStatus();
}

using RowConverter = absl::Status (*)(const char* src, char* dst, int64_t count);

// The converter to `To`, or null where a float would become an integer or the reverse.
template <typename From>
RowConverter ConverterFrom(FileDType to) {
  if constexpr (kIsFloat<From>) {
    switch (to) {
      case FileDType::kF32:
        return ConvertRow<From, float>;
      case FileDType::kBF16:
        return ConvertRow<From, BF16>;
      case FileDType::kF16:
        return ConvertRow<From, F16>;
      case FileDType::kF64:
        return ConvertRow<From, double>;
      default:
        return nullptr;
    }
  } else {
    switch (to) {
      case FileDType::kI32:
        return ConvertRow<From, int32_t>;
      case FileDType::kI64:
        return ConvertRow<From, int64_t>;
      case FileDType::kU8:
        return ConvertRow<From, uint8_t>;
      default:
        return nullptr;
    }
  }
}

RowConverter Converter(FileDType from, FileDType to) {
  switch (from) {
    case FileDType::kF32:
      return ConverterFrom<float>(to);
    case FileDType::kBF16:
      return ConverterFrom<BF16>(to);
    case FileDType::kF16:
      return ConverterFrom<F16>(to);
    case FileDType::kF64:
      return ConverterFrom<double>(to);
    case FileDType::kBool:
    case FileDType::kU8:
      return ConverterFrom<uint8_t>(to);
    case FileDType::kI8:
      return ConverterFrom<int8_t>(to);
    case FileDType::kI16:
      return ConverterFrom<int16_t>(to);
    case FileDType::kU16:
      return ConverterFrom<uint16_t>(to);
    case FileDType::kI32:
      return ConverterFrom<int32_t>(to);
    case FileDType::kU32:
      return ConverterFrom<uint32_t>(to);
    case FileDType::kI64:
      return ConverterFrom<int64_t>(to);
    case FileDType::kU64:
      return ConverterFrom<uint64_t>(to);
    default:
      return nullptr;
  }
}

absl::StatusOr<RowConverter> FindConverter(FileDType from, FileDType to) {
  if (RowConverter converter = Converter(from, to)) return converter;
  return absl::InvalidArgumentError(
      absl::StrCat("elements of type ", FileDTypeName(from), " do not become ", FileDTypeName(to)));
}

absl::Status RequireHost(const Tensor& tensor) {
  MF_CHECK(tensor.defined()) << " undefined tensor";
  if (tensor.device() == DeviceKind::kHost) return absl::OkStatus();
  return absl::InvalidArgumentError("the tensor is not in host memory");
}

const char* RowAddress(const Tensor& tensor, int64_t row) {
  return static_cast<const char*>(tensor.raw()) + row * tensor.pitch() * SizeOf(tensor.dtype());
}

}  // namespace

absl::StatusOr<DType> TensorTypeOf(FileDType dtype) {
  switch (dtype) {
    case FileDType::kF32:
      return DType::kF32;
    case FileDType::kBF16:
      return DType::kBF16;
    case FileDType::kF16:
      return DType::kF16;
    case FileDType::kF64:
      return DType::kF64;
    case FileDType::kU8:
      return DType::kU8;
    case FileDType::kBool:
    case FileDType::kI8:
    case FileDType::kI16:
    case FileDType::kU16:
    case FileDType::kI32:
      return DType::kI32;
    case FileDType::kU32:
    case FileDType::kI64:
    case FileDType::kU64:
      return DType::kI64;
    case FileDType::kF8E5M2:
    case FileDType::kF8E4M3:
    case FileDType::kF8E8M0:
    case FileDType::kC64:
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat("elements of type ", FileDTypeName(dtype), " can only be read as bytes"));
}

absl::Status ReadElements(FileDType dtype, const char* src, const Tensor& dst) {
  MF_RETURN_IF_ERROR(TensorTypeOf(dtype).status());
  MF_RETURN_IF_ERROR(RequireHost(dst));
  FileDType to = FileDTypeOf(dst.dtype());
  MF_ASSIGN_OR_RETURN(RowConverter converter, FindConverter(dtype, to));
  int64_t rows = dst.rows(), cols = dst.cols();
  if (dst.IsContiguous()) {
    cols *= rows;
    rows = std::min<int64_t>(rows, 1);
  }
  if (cols == 0) return absl::OkStatus();
  for (int64_t r = 0; r < rows; ++r) {
    char* out = const_cast<char*>(RowAddress(dst, r));
    const char* in = src + r * cols * SizeOf(dtype);
    if (dtype == to) {
      std::memcpy(out, in, cols * SizeOf(dtype));
    } else {
      MF_RETURN_IF_ERROR(converter(in, out, cols));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteElements(const Tensor& tensor, FileDType dtype,
                           absl::FunctionRef<absl::Status(absl::Span<const char>)> sink) {
  constexpr int64_t kPieceElements = 1 << 18;
  MF_RETURN_IF_ERROR(RequireHost(tensor));
  FileDType from = FileDTypeOf(tensor.dtype());
  MF_ASSIGN_OR_RETURN(RowConverter converter, FindConverter(from, dtype));
  int64_t rows = tensor.rows(), cols = tensor.cols();
  if (tensor.IsContiguous()) {
    cols *= rows;
    rows = std::min<int64_t>(rows, 1);
  }
  std::string piece;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t at = 0; at < cols; at += kPieceElements) {
      int64_t count = std::min(kPieceElements, cols - at);
      const char* src = RowAddress(tensor, r) + at * SizeOf(from);
      if (from != dtype) {
        piece.resize(count * SizeOf(dtype));
        MF_RETURN_IF_ERROR(converter(src, piece.data(), count));
        src = piece.data();
      }
      MF_RETURN_IF_ERROR(sink(absl::Span<const char>(src, count * SizeOf(dtype))));
    }
  }
  return absl::OkStatus();
}

}  // namespace meshfold
