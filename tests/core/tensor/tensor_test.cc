#include "core/tensor/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "core/base/check.h"
#include "core/base/exec_context.h"

namespace meshfold {
namespace {

using ::testing::ElementsAre;

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() : context_(MakeContext()), scope_(context_) {}

  static ExecContext MakeContext() {
    ExecContext context;
    context.allocator = &SystemHostAllocator();
    return context;
  }

  // 0, 1, 2, ... with `pad` unused elements after each row.
  static Tensor Iota(const Shape& shape, int64_t pad) {
    const int64_t pitch = shape.cols() + pad;
    Tensor storage = Tensor::Contiguous({shape.rows() * pitch});
    Tensor tensor = Tensor::FromStorage(storage.storage(), shape, DType::kF32, 0, pitch);
    for (int64_t i = 0; i < shape.numel(); ++i) {
      tensor.row<float>(i / shape.cols())[i % shape.cols()] = static_cast<float>(i);
    }
    return tensor;
  }

  ExecContext context_;
  ScopedExecContext scope_;
};

TEST_F(TensorTest, PadsRowsOfWholeKibibytesOnly) {
  EXPECT_EQ(PaddedPitch(256, DType::kF32), 272);
  EXPECT_EQ(PaddedPitch(512, DType::kF32), 528);
  EXPECT_EQ(PaddedPitch(512, DType::kBF16), 544);
  EXPECT_EQ(PaddedPitch(255, DType::kF32), 255);
  EXPECT_EQ(PaddedPitch(384, DType::kF32), 384);
  EXPECT_EQ(PaddedPitch(0, DType::kF32), 0);
  EXPECT_EQ(Tensor::Empty({3, 512}).pitch(), 528);
  EXPECT_EQ(Tensor::Empty({1, 512}).pitch(), 512);
  EXPECT_EQ(Tensor::Empty({512}).pitch(), 512);
  EXPECT_EQ(Tensor::Contiguous({3, 512}).pitch(), 512);
}

TEST_F(TensorTest, UndefinedHasNoStorage) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.ToString(), "undefined");
  EXPECT_DEATH(tensor.raw(), "undefined tensor");
}

TEST_F(TensorTest, StorageHoldsEveryPaddedRow) {
  const Tensor tensor = Tensor::Empty({3, 256}, DType::kBF16);
  EXPECT_EQ(tensor.pitch(), 256);
  const Tensor padded = Tensor::Empty({3, 512}, DType::kBF16);
  EXPECT_EQ(padded.storage()->bytes(), 3 * 544 * 2);
  EXPECT_EQ(padded.nbytes(), 3 * 512 * 2);
  EXPECT_EQ(padded.ToString(), "bf16 [3, 512]");
}

TEST_F(TensorTest, NegativeExtentIsAnError) { EXPECT_THROW(Tensor::Empty({2, -1}), StatusError); }

TEST_F(TensorTest, CopiesShareElements) {
  const Tensor tensor = Iota({2, 2}, 0);
  const Tensor copy = tensor;
  copy.data<float>()[3] = 9;
  EXPECT_EQ(tensor.data<float>()[3], 9);
}

TEST_F(TensorTest, VectorsRoundTripThroughPaddedRows) {
  std::vector<float> values(3 * 256);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor tensor = TensorFromVector(values, {3, 256});
  EXPECT_EQ(tensor.pitch(), 272);
  EXPECT_EQ(ToVector<float>(tensor), values);
  EXPECT_EQ(ToVector<double>(tensor)[700], 700.0);
  const Tensor ids = TensorFromVector<int32_t>({3, -1}, {2});
  EXPECT_THAT(ToVector<int64_t>(ids), ElementsAre(3, -1));
  EXPECT_TRUE(ToVector<float>(TensorFromVector<float>({}, {0, 4})).empty());
  EXPECT_EQ(ToVector<float>(TensorFromVector<float>({7}, {})), std::vector<float>{7});
}

TEST_F(TensorTest, ToVectorConvertsHalves) {
  const Tensor tensor = Tensor::Empty({2}, DType::kBF16);
  tensor.data<BF16>()[0] = ToBF16(1.5f);
  tensor.data<BF16>()[1] = ToBF16(-2.0f);
  EXPECT_THAT(ToVector<double>(tensor), ElementsAre(1.5, -2.0));
}

TEST_F(TensorTest, TypesAreChecked) {
  const Tensor tensor = Tensor::Empty({2});
  EXPECT_DEATH(tensor.data<int32_t>(), "tensor is f32 \\[2\\], read as i32");
}

TEST_F(TensorTest, SpanNeedsContiguousRows) {
  EXPECT_THAT(Iota({2, 2}, 0).span<float>(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Iota({2, 2}, 3).Narrow(1, 1).span<float>(), ElementsAre(2, 3));
  EXPECT_DEATH(Iota({2, 2}, 3).span<float>(), "has pitch 5");
}

class TensorViewTest : public TensorTest, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Pads, TensorViewTest, ::testing::Values(0, 3));

TEST_P(TensorViewTest, NarrowTakesEntriesOfTheOuterDim) {
  const Tensor tensor = Iota({3, 2, 2}, GetParam());
  const Tensor view = tensor.Narrow(1, 2);
  EXPECT_EQ(view.shape(), Shape({2, 2, 2}));
  EXPECT_THAT(ToVector<float>(view), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_TRUE(ToVector<float>(tensor.Narrow(3, 0)).empty());
  EXPECT_THAT(ToVector<float>(view.Narrow(1, 1)), ElementsAre(8, 9, 10, 11));
  EXPECT_DEATH(tensor.Narrow(2, 2), "rows \\[2, 4\\)");
  EXPECT_TRUE(ToVector<float>(Iota({0, 2}, GetParam()).Narrow(0, 0)).empty());
}

TEST_P(TensorViewTest, NarrowOfAVectorTakesElements) {
  const Tensor view = Iota({6}, GetParam()).Narrow(2, 3);
  EXPECT_THAT(ToVector<float>(view), ElementsAre(2, 3, 4));
  EXPECT_THAT(ToVector<float>(view.Reshape({3, 1})), ElementsAre(2, 3, 4));
}

TEST_P(TensorViewTest, NarrowColsKeepsThePitch) {
  const Tensor tensor = Iota({2, 4}, GetParam());
  const Tensor view = tensor.NarrowCols(1, 2);
  EXPECT_THAT(ToVector<float>(view), ElementsAre(1, 2, 5, 6));
  EXPECT_FALSE(view.IsContiguous());
  EXPECT_THAT(ToVector<float>(view.Select(1)), ElementsAre(5, 6));
  EXPECT_DEATH(tensor.NarrowCols(3, 2), "columns \\[3, 5\\)");
}

TEST_P(TensorViewTest, SelectDropsTheOuterDim) {
  const Tensor entry = Iota({3, 2, 2}, GetParam()).Select(2);
  EXPECT_EQ(entry.shape(), Shape({2, 2}));
  EXPECT_THAT(ToVector<float>(entry), ElementsAre(8, 9, 10, 11));
  const Tensor scalar = entry.Select(1).Select(0);
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_THAT(ToVector<float>(scalar), ElementsAre(10));
  EXPECT_DEATH(entry.Select(2), "rows \\[2, 3\\)");
}

TEST_P(TensorViewTest, ReshapeKeepsOrder) {
  const Tensor tensor = Iota({2, 3, 4}, GetParam());
  const Tensor merged = tensor.Reshape({6, 4});
  EXPECT_EQ(ToVector<float>(merged), ToVector<float>(tensor));
  EXPECT_EQ(merged.data<float>(), tensor.data<float>());
  EXPECT_EQ(tensor.AsMatrix().shape(), Shape({6, 4}));
  EXPECT_DEATH(tensor.Reshape({5, 5}), "25|against 24");
  if (GetParam() == 0) {
    EXPECT_EQ(ToVector<float>(tensor.Reshape({24})), ToVector<float>(tensor));
    EXPECT_EQ(ToVector<float>(tensor.Reshape({4, 6})), ToVector<float>(tensor));
  } else {
    EXPECT_DEATH(tensor.Reshape({24}), "reshape of padded rows");
  }
}

TEST_P(TensorViewTest, ReshapeOfOnePaddedRow) {
  const Tensor row = Iota({3, 4}, GetParam()).Narrow(1, 1);
  EXPECT_THAT(ToVector<float>(row.Reshape({2, 2})), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(Iota({}, 0).AsMatrix().shape(), Shape({1, 1}));
}

TEST_P(TensorViewTest, PiecesCoverAnyFlatInterval) {
  const Tensor tensor = Iota({3, 4}, GetParam());
  for (int64_t begin = 0; begin <= 12; ++begin) {
    for (int64_t end = begin; end <= 12; ++end) {
      int64_t at = begin, pieces = 0;
      ForEachPiece<float>(tensor, begin, end, [&](float* piece, int64_t first, int64_t count) {
        ASSERT_EQ(first, at);
        ASSERT_GT(count, 0);
        for (int64_t i = 0; i < count; ++i) ASSERT_EQ(piece[i], static_cast<float>(at + i));
        at += count;
        ++pieces;
      });
      ASSERT_EQ(at, end);
      const int64_t rows = end == begin ? 0 : (end - 1) / 4 - begin / 4 + 1;
      ASSERT_EQ(pieces, GetParam() == 0 ? std::min<int64_t>(rows, 1) : rows);
    }
  }
}

TEST_F(TensorTest, ViewOutsideItsStorageIsABug) {
  const Tensor tensor = Tensor::Contiguous({4});
  const auto view = [&](const Shape& shape, int64_t offset, int64_t pitch) {
    return Tensor::FromStorage(tensor.storage(), shape, DType::kF32, offset, pitch);
  };
  EXPECT_EQ(view({2, 1}, 1, 2).numel(), 2);
  EXPECT_EQ(view({0, 9}, 4, 9).numel(), 0);
  EXPECT_DEATH(view({2, 1}, 2, 2), "in 16 bytes");
  EXPECT_DEATH(view({2, 2}, 0, 1), "pitch 1");
  EXPECT_DEATH(view({1}, -1, 1), "at -1");
}

// Gives no memory, like a pool at its limit.
class FullAllocator : public Allocator {
 public:
  absl::StatusOr<void*> Allocate(int64_t) override {
    return absl::ResourceExhaustedError("pool 'device' is full");
  }
  void Free(void*, int64_t) override {}
  AllocatorStats stats() const override { return {}; }
  DeviceKind device() const override { return DeviceKind::kHost; }
};

TEST_F(TensorTest, FullPoolIsAnErrorNotACrash) {
  FullAllocator allocator;
  try {
    Tensor::Empty({8}, DType::kF32, allocator);
    FAIL() << "nothing was thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status().code(), absl::StatusCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace meshfold
