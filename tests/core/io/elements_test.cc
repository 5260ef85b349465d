#include "core/io/elements.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/tensor/allocator.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

// Values as they stand in a file, behind one byte so that they are not aligned.
template <typename T>
std::string Unaligned(const std::vector<T>& values) {
  std::string bytes(1 + values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  return bytes;
}

Tensor Make(const Shape& shape, DType dtype) {
  return Tensor::Contiguous(shape, dtype, SystemHostAllocator());
}

TEST(ReadElementsTest, ConvertsBetweenFloats) {
  std::string f32 = Unaligned<float>({1.5f, -0.1f, 1e30f});
  Tensor bf16 = Make({3}, DType::kBF16);
  MF_ASSERT_OK(ReadElements(FileDType::kF32, f32.data() + 1, bf16));
  EXPECT_EQ(ToVector<float>(bf16)[0], 1.5f);
  EXPECT_EQ(ToVector<float>(bf16)[1], ToFloat(ToBF16(-0.1f)));
  Tensor f16 = Make({3}, DType::kF16);
  MF_ASSERT_OK(ReadElements(FileDType::kF32, f32.data() + 1, f16));
  EXPECT_TRUE(std::isinf(ToVector<float>(f16)[2]));
  std::string f64 = Unaligned<double>({0.1, 2.0, -3.0});
  Tensor f32_tensor = Make({3}, DType::kF32);
  MF_ASSERT_OK(ReadElements(FileDType::kF64, f64.data() + 1, f32_tensor));
  EXPECT_EQ(ToVector<float>(f32_tensor), std::vector<float>({0.1f, 2.0f, -3.0f}));
  std::string halves = Unaligned<uint16_t>({0x3f80, 0xc000, 0x7fc0});
  MF_ASSERT_OK(ReadElements(FileDType::kBF16, halves.data() + 1, f32_tensor));
  EXPECT_EQ(ToVector<float>(f32_tensor)[1], -2.0f);
  EXPECT_TRUE(std::isnan(ToVector<float>(f32_tensor)[2]));
}

TEST(ReadElementsTest, ConvertsBetweenIntegersAndRefusesWhatDoesNotFit) {
  std::string u16 = Unaligned<uint16_t>({0, 65535});
  Tensor i32 = Make({2}, DType::kI32);
  MF_ASSERT_OK(ReadElements(FileDType::kU16, u16.data() + 1, i32));
  EXPECT_EQ(ToVector<int32_t>(i32), std::vector<int32_t>({0, 65535}));
  std::string i64 = Unaligned<int64_t>({1, int64_t{1} << 31});
  EXPECT_TRUE(FailsWith(ReadElements(FileDType::kI64, i64.data() + 1, i32),
                        absl::StatusCode::kOutOfRange, "2147483648"));
  std::string negative = Unaligned<int8_t>({0, -1});
  EXPECT_TRUE(FailsWith(ReadElements(FileDType::kI8, negative.data() + 1, Make({2}, DType::kU8)),
                        absl::StatusCode::kOutOfRange, "-1"));
}

TEST(ReadElementsTest, RefusesFloatsForIntegersAndEightBitFloats) {
  char bytes[64] = {};
  EXPECT_TRUE(FailsWith(ReadElements(FileDType::kF32, bytes, Make({2}, DType::kI32)),
                        absl::StatusCode::kInvalidArgument, "F32 do not become I32"));
  EXPECT_TRUE(FailsWith(ReadElements(FileDType::kI32, bytes, Make({2}, DType::kF32)),
                        absl::StatusCode::kInvalidArgument, "I32 do not become F32"));
  EXPECT_TRUE(FailsWith(ReadElements(FileDType::kF8E4M3, bytes, Make({2}, DType::kF32)),
                        absl::StatusCode::kUnimplemented, "F8_E4M3"));
}

TEST(ElementsTest, PaddedRowsAreLogicalElementsOnly) {
  constexpr int64_t kCols = 256;  // 1 KiB a row: Tensor::Empty pads
  Tensor padded = Tensor::Empty({3, kCols}, DType::kF32, SystemHostAllocator());
  ASSERT_FALSE(padded.IsContiguous());
  std::vector<float> values(3 * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::string file = Unaligned(values);
  MF_ASSERT_OK(ReadElements(FileDType::kF32, file.data() + 1, padded));
  EXPECT_EQ(ToVector<float>(padded), values);
  for (FileDType dtype : {FileDType::kF32, FileDType::kF64}) {
    std::string written;
    MF_ASSERT_OK(WriteElements(padded, dtype, [&](absl::Span<const char> piece) {
      written.append(piece.data(), piece.size());
      return absl::OkStatus();
    }));
    ASSERT_EQ(written.size(), values.size() * SizeOf(dtype));
    Tensor back = Make({3, kCols}, DType::kF32);
    MF_ASSERT_OK(ReadElements(dtype, written.data(), back));
    EXPECT_EQ(ToVector<float>(back), values);
  }
}

TEST(ElementsTest, EmptyAndScalarTensors) {
  int pieces = 0;
  MF_ASSERT_OK(
      WriteElements(Make({0, 4}, DType::kF32), FileDType::kF32, [&](absl::Span<const char>) {
        ++pieces;
        return absl::OkStatus();
      }));
  EXPECT_EQ(pieces, 0);
  MF_ASSERT_OK(ReadElements(FileDType::kF32, nullptr, Make({4, 0}, DType::kF32)));
  std::string one = Unaligned<int32_t>({7});
  Tensor scalar = Make({}, DType::kI64);
  MF_ASSERT_OK(ReadElements(FileDType::kI32, one.data() + 1, scalar));
  EXPECT_EQ(ToVector<int64_t>(scalar), std::vector<int64_t>({7}));
}

TEST(ElementsTest, StopsAtTheFirstErrorOfTheSink) {
  int pieces = 0;
  absl::Status status =
      WriteElements(Make({1 << 20}, DType::kU8), FileDType::kI64, [&](absl::Span<const char>) {
        ++pieces;
        return absl::ResourceExhaustedError("full");
      });
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, "full"));
  EXPECT_EQ(pieces, 1);
}

}  // namespace
}  // namespace meshfold
