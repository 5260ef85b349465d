// Boxes against their definition, element by element.
#include "core/tensor/box.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/base/exec_context.h"
#include "core/tensor/allocator.h"

namespace meshfold {
namespace {

using Dims = std::vector<int64_t>;

// The elements of `box` in the order of the whole tensor, in the box's own row-major order.
std::vector<int64_t> ElementsOf(const Box& box, const Shape& whole) {
  std::vector<int64_t> elements;
  for (int64_t at = 0; at < box.shape().numel(); ++at) {
    int64_t rest = at, flat = 0, stride = 1;
    for (int d = whole.rank() - 1; d >= 0; --d) {
      const size_t i = static_cast<size_t>(d);
      flat += (box.start[i] + rest % box.extent[i]) * stride;
      rest /= box.extent[i];
      stride *= whole[d];
    }
    elements.push_back(flat);
  }
  return elements;
}

// Every box of a tensor, those of no elements too.
std::vector<Box> BoxesOf(const Shape& shape) {
  std::vector<Box> boxes = {Box()};
  for (int64_t size : shape.dims()) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (int64_t start = 0; start <= size; ++start) {
        for (int64_t extent = 0; start + extent <= size; ++extent) {
          longer.push_back(box);
          longer.back().start.push_back(start);
          longer.back().extent.push_back(extent);
        }
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

const Shape kShapes[] = {{}, {4}, {3, 4}, {2, 3, 2}, {2, 1, 3}, {0, 3}};

class BoxTest : public ::testing::Test {
 protected:
  // 0, 1, 2, ... in rows `gap` apart; what is between them is -1.
  static Tensor Numbered(const Shape& shape, int64_t gap) {
    const int64_t pitch = shape.cols() + gap;
    const Tensor all = Tensor::Contiguous({shape.rows() * pitch}, DType::kI32);
    for (int32_t& value : all.span<int32_t>()) value = -1;
    const Tensor tensor = Tensor::FromStorage(all.storage(), shape, DType::kI32, 0, pitch);
    int32_t next = 0;
    for (int64_t r = 0; r < shape.rows(); ++r) {
      for (int64_t c = 0; c < shape.cols(); ++c) tensor.row<int32_t>(r)[c] = next++;
    }
    return tensor;
  }
  static Tensor Unwritten(const Shape& shape, int64_t gap) {
    const Tensor tensor = Numbered(shape, gap);
    for (int64_t r = 0; r < shape.rows(); ++r) {
      for (int64_t c = 0; c < shape.cols(); ++c) tensor.row<int32_t>(r)[c] = -2;
    }
    return tensor;
  }
  // Sum over what is between the rows: -1 for each element there.
  static int64_t Between(const Tensor& tensor) {
    int64_t sum = 0;
    for (int64_t r = 0; r < tensor.rows(); ++r) {
      for (int64_t c = tensor.cols(); c < tensor.pitch(); ++c) sum += tensor.row<int32_t>(r)[c];
    }
    return sum;
  }

  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_{context_};
};

TEST_F(BoxTest, DescribesItself) {
  const Box whole = Box::Whole({3, 4});
  EXPECT_EQ(whole.start, (Dims{0, 0}));
  EXPECT_EQ(whole.extent, (Dims{3, 4}));
  EXPECT_TRUE(whole.IsWhole({3, 4}));
  EXPECT_FALSE(whole.IsWhole({4, 3}));
  const Box box{{1, 0}, {2, 0}};
  EXPECT_EQ(box.shape(), Shape({2, 0}));
  EXPECT_EQ(box.ToString(), "[1:3, 0:0]");
  EXPECT_FALSE(box.IsWhole({3, 4}));
  EXPECT_TRUE(box == (Box{{1, 0}, {2, 0}}));
  EXPECT_FALSE(box == (Box{{1, 0}, {2, 1}}));
  EXPECT_TRUE(Box::Whole({}).IsWhole({}));
  EXPECT_EQ(Box::Whole({}).ToString(), "[]");
}

TEST_F(BoxTest, VisitsAnyRangeOfItsElementsInOrder) {
  for (const Shape& shape : kShapes) {
    for (const Box& box : BoxesOf(shape)) {
      const std::vector<int64_t> elements = ElementsOf(box, shape);
      const int64_t volume = static_cast<int64_t>(elements.size());
      for (int64_t begin = 0; begin <= volume; ++begin) {
        for (int64_t end = begin; end <= volume; ++end) {
          std::vector<int64_t> found;
          ForEachRun(box, begin, end, shape, [&](int64_t whole, int64_t at, int64_t count) {
            ASSERT_EQ(at, begin + static_cast<int64_t>(found.size()));
            ASSERT_GT(count, 0);
            for (int64_t i = 0; i < count; ++i) found.push_back(whole + i);
          });
          ASSERT_EQ(found, std::vector<int64_t>(elements.begin() + begin, elements.begin() + end))
              << box.ToString() << " of " << shape.ToString();
        }
      }
    }
  }
}

TEST_F(BoxTest, RunsAreWholeRowsAndAsLongAsCanBe) {
  for (const Shape& shape : kShapes) {
    for (const Box& box : BoxesOf(shape)) {
      int64_t runs = 0;
      ForEachRun(box, shape, [&](int64_t, int64_t, int64_t count) {
        EXPECT_EQ(count % box.shape().cols(), 0);
        ++runs;
      });
      // Where the next element is not the next one of the whole, another run begins at the latest.
      const std::vector<int64_t> elements = ElementsOf(box, shape);
      int64_t jumps = elements.empty() ? 0 : 1;
      for (size_t i = 1; i < elements.size(); ++i) jumps += elements[i] != elements[i - 1] + 1;
      EXPECT_GE(runs, jumps);
    }
  }
  int64_t runs = 0;
  auto count = [&](int64_t, int64_t, int64_t) { ++runs; };
  ForEachRun({{1, 0, 0}, {2, 5, 6}}, {4, 5, 6}, count);
  EXPECT_EQ(runs, 1);
  ForEachRun({{0, 1, 0}, {4, 2, 6}}, {4, 5, 6}, count);
  EXPECT_EQ(runs, 1 + 4);
  ForEachRun({{0, 0, 1}, {4, 5, 2}}, {4, 5, 6}, count);
  EXPECT_EQ(runs, 1 + 4 + 20);
}

TEST_F(BoxTest, CopiesFromAndIntoTheWholeAtAnyPitch) {
  for (const Shape& shape : kShapes) {
    for (const Box& box : BoxesOf(shape)) {
      const std::vector<int64_t> elements = ElementsOf(box, shape);
      for (int64_t gap : {0, 3}) {
        const Tensor whole = Numbered(shape, gap), part = Unwritten(box.shape(), 2 * gap);
        CopyFromWhole(whole, box, part);
        EXPECT_EQ(ToVector<int64_t>(part), elements) << box.ToString();
        EXPECT_EQ(Between(part), -2 * gap * part.rows());

        const Tensor back = Unwritten(shape, gap);
        CopyIntoWhole(part, box, back);
        std::vector<int64_t> wanted(static_cast<size_t>(shape.numel()), -2);
        for (int64_t element : elements) wanted[static_cast<size_t>(element)] = element;
        EXPECT_EQ(ToVector<int64_t>(back), wanted) << box.ToString();
        EXPECT_EQ(Between(back), -gap * back.rows());
      }
    }
  }
}

TEST_F(BoxTest, ChecksShapesAndTypes) {
  const Tensor whole = Tensor::Contiguous({3, 4});
  const Box box{{0, 0}, {2, 4}};
  EXPECT_DEATH(CopyFromWhole(whole, box, Tensor::Contiguous({3, 4})), "f32 \\[3, 4\\]");
  EXPECT_DEATH(CopyIntoWhole(Tensor::Contiguous({2, 4}, DType::kI32), box, whole),
               "i32 \\[2, 4\\]");
}

}  // namespace
}  // namespace meshfold
