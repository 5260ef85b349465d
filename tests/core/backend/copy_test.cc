#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/rng.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using ::testing::ElementsAre;
using testing::ExpectBitEqual;
using testing::ForEachVariant;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

constexpr DType kAllTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64,
                               DType::kI32, DType::kI64,  DType::kU8};

TEST(FillTest, FillsEveryType) {
  for (DType dtype : kAllTypes) {
    ForEachVariant(
        [&](Padding padding) {
          const Tensor out = UnwrittenTensor({129, 301}, dtype, padding);
          CurrentBackend().Fill(3, out);
          return std::vector<Tensor>{out};
        },
        [&](const std::vector<Tensor>& out) {
          EXPECT_EQ(ToVector<float>(out[0]), std::vector<float>(129 * 301, 3)) << DTypeName(dtype);
        });
  }
}

TEST(FillTest, EmptyTensorsAreLegal) {
  ScopedTestContext context;
  context.backend().Fill(1, Tensor::Empty({0, 3}));
  context.backend().Copy(Tensor::Empty({3, 0}), Tensor::Empty({3, 0}, DType::kBF16));
  context.backend().RandomNormal(RngKey{1}, 0, 0, 1, Tensor::Empty({0}));
}

// Small integers are exact in every type.
TEST(CopyTest, ConvertsBetweenAllTypes) {
  std::vector<double> values;
  for (int i = 0; i < 7 * 37; ++i) values.push_back(i % 120);
  for (DType from : kAllTypes) {
    for (DType to : kAllTypes) {
      ForEachVariant(
          [&](Padding padding) {
            const Tensor out = UnwrittenTensor({7, 37}, to, padding);
            CurrentBackend().Copy(MakeTensor(values, {7, 37}, from, padding), out);
            return std::vector<Tensor>{out};
          },
          [&](const std::vector<Tensor>& out) {
            EXPECT_EQ(ToVector<double>(out[0]), values) << DTypeName(from) << DTypeName(to);
          });
    }
  }
}

TEST(CopyTest, SplitsLargeCopiesOverThreads) {
  for (DType to : {DType::kF32, DType::kBF16}) {
    ForEachVariant(
        [&](Padding padding) {
          const Tensor out = UnwrittenTensor({301, 257}, to, padding);
          CurrentBackend().Copy(RandomTensor("x", {301, 257}, {.padding = padding}), out);
          return std::vector<Tensor>{out};
        },
        [&](const std::vector<Tensor>& out) {
          const Tensor x = RandomTensor("x", {301, 257}, {.dtype = to});
          ExpectBitEqual(out[0], x);
        });
  }
}

TEST(CopyTest, IntegersSaturateAndRoundTowardZero) {
  ScopedTestContext context;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Tensor x = MakeTensor({-1.9, 1.9, 1e30, -1e30, nan, 300}, {6});
  const auto converted = [&](DType dtype) {
    const Tensor out = UnwrittenTensor({6}, dtype);
    context.backend().Copy(x, out);
    return ToVector<int64_t>(out);
  };
  EXPECT_THAT(converted(DType::kI32), ElementsAre(-1, 1, INT32_MAX, INT32_MIN, 0, 300));
  EXPECT_THAT(converted(DType::kI64), ElementsAre(-1, 1, INT64_MAX, INT64_MIN, 0, 300));
  EXPECT_THAT(converted(DType::kU8), ElementsAre(0, 1, 255, 0, 0, 255));
  const Tensor wide = TensorFromVector<int64_t>({int64_t{1} << 40, -(int64_t{1} << 40)}, {2});
  const Tensor narrow = UnwrittenTensor({2}, DType::kI32);
  context.backend().Copy(wide, narrow);
  EXPECT_THAT(ToVector<int64_t>(narrow), ElementsAre(INT32_MAX, INT32_MIN));
}

// The vector conversions against the scalar ones of core/tensor/dtype.h: every 16-bit pattern, and
// floats around every rounding border of both formats.
class HalfConversionTest : public ::testing::TestWithParam<DType> {
 protected:
  static uint16_t Rounded(float x) {
    return GetParam() == DType::kBF16 ? ToBF16(x).bits : ToF16(x).bits;
  }
  static Tensor Halves(const std::vector<uint16_t>& bits) {
    const Tensor tensor = Tensor::Contiguous({static_cast<int64_t>(bits.size())}, GetParam());
    std::copy(bits.begin(), bits.end(), static_cast<uint16_t*>(tensor.raw()));
    return tensor;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, HalfConversionTest, ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(HalfConversionTest, WidensEveryPattern) {
  ForEachVariant(
      [&](Padding) {
        std::vector<uint16_t> bits(0x10000);
        for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
        const Tensor out = UnwrittenTensor({0x10000});
        CurrentBackend().Copy(Halves(bits), out);
        return std::vector<Tensor>{out};
      },
      [&](const std::vector<Tensor>& out) {
        for (uint32_t i = 0; i < 0x10000; ++i) {
          const uint16_t bits = static_cast<uint16_t>(i);
          const float expected =
              GetParam() == DType::kBF16 ? ToFloat(BF16{bits}) : ToFloat(F16{bits});
          const float actual = out[0].data<float>()[i];
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(actual)) << i;
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(actual), std::bit_cast<uint32_t>(expected)) << i;
          }
        }
      });
}

TEST_P(HalfConversionTest, RoundsLikeTheScalarConversion) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0xffffu}) {
      values.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const int64_t size = static_cast<int64_t>(values.size());
  ForEachVariant(
      [&](Padding) {
        const Tensor out = UnwrittenTensor({size}, GetParam());
        CurrentBackend().Copy(TensorFromVector(values, {size}), out);
        return std::vector<Tensor>{out};
      },
      [&](const std::vector<Tensor>& out) {
        const uint16_t* bits = static_cast<const uint16_t*>(out[0].raw());
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(bits[i], Rounded(values[i])) << std::bit_cast<uint32_t>(values[i]);
        }
      });
}

TEST(HostCopyTest, RoundTripsAndIsReadyAtOnce) {
  ScopedTestContext context(/*num_threads=*/2);
  const Tensor x = RandomTensor("x", {1000, 300}), y = UnwrittenTensor({1000, 300});
  std::vector<float> host(x.numel());
  std::unique_ptr<Completion> to_host = context.backend().CopyToHost(x, host.data());
  EXPECT_TRUE(to_host->Done());
  EXPECT_TRUE(to_host->HostWait(absl::ZeroDuration()).ok());
  to_host->WaitOn(context.backend().default_stream());
  EXPECT_EQ(host, ToVector<float>(x));
  AwaitOnHost(*context.backend().CopyFromHost(host.data(), y));
  ExpectBitEqual(y, x);
  EXPECT_TRUE(context.backend().default_stream().Synchronize().ok());
}

TEST(HostCopyTest, PaddedRowsAreRefused) {
  ScopedTestContext context;
  const Tensor x = RandomTensor("x", {2, 3}, {.padding = Padding::kGuarded});
  float host[6];
  EXPECT_DEATH(context.backend().CopyToHost(x, host), "IsContiguous");
}

TEST(RandomNormalTest, EqualsNormalAtForAnySliceAndPadding) {
  const RngKey key = MakeRngKey(1, "weight");
  ForEachVariant(
      [&](Padding padding) {
        const Tensor whole = UnwrittenTensor({41, 257}, DType::kF32, padding);
        const Tensor slice = UnwrittenTensor({3, 257}, DType::kF32, padding);
        CurrentBackend().RandomNormal(key, 0, 0.5, 0.02, whole);
        CurrentBackend().RandomNormal(key, 7 * 257, 0.5, 0.02, slice);
        ExpectBitEqual(slice, whole.Narrow(7, 3), "slice");
        return std::vector<Tensor>{whole};
      },
      [&](const std::vector<Tensor>& out) {
        const std::vector<float> values = ToVector<float>(out[0]);
        for (size_t i = 0; i < values.size(); ++i) {
          ASSERT_EQ(values[i], 0.5f + 0.02f * NormalAt(key, i)) << i;
        }
      });
}

TEST(RandomNormalTest, RoundsIntoHalves) {
  const RngKey key = MakeRngKey(1, "weight");
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    ForEachVariant(
        [&](Padding padding) {
          const Tensor out = UnwrittenTensor({9, 1030}, dtype, padding);
          CurrentBackend().RandomNormal(key, 5, 0, 1, out);
          return std::vector<Tensor>{out};
        },
        [&](const std::vector<Tensor>& out) {
          const Tensor exact = UnwrittenTensor({9, 1030});
          const Tensor expected = UnwrittenTensor({9, 1030}, dtype);
          CurrentBackend().RandomNormal(key, 5, 0, 1, exact);
          CurrentBackend().Copy(exact, expected);
          ExpectBitEqual(out[0], expected);
        });
  }
}

TEST(CpuBackendTest, IsRegistered) {
  EXPECT_THAT(BackendRegistry().Names(), ::testing::Contains("cpu"));
  EXPECT_EQ((*MakeBackend("cpu"))->name(), "cpu");
  EXPECT_EQ(MakeBackend("abacus").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace meshfold
