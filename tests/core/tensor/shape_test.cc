#include "core/tensor/shape.h"

#include <gtest/gtest.h>

#include <sstream>

namespace meshfold {
namespace {

TEST(ShapeTest, CountsElementsRowsAndColumns) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.numel(), 24);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.cols(), 4);
}

TEST(ShapeTest, ScalarIsOneRowOfOne) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.cols(), 1);
}

TEST(ShapeTest, EmptyExtents) {
  EXPECT_EQ(Shape({0, 5}).numel(), 0);
  EXPECT_EQ(Shape({0, 5}).rows(), 0);
  EXPECT_EQ(Shape({5, 0}).rows(), 5);
  EXPECT_EQ(Shape({0}).rows(), 1);
}

TEST(ShapeTest, NegativeIndicesCountFromTheEnd) {
  Shape shape = {2, 3, 4};
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[-1], 4);
  EXPECT_EQ(shape[-3], 2);
  shape.set(-2, 7);
  shape.set(2, 9);
  EXPECT_EQ(shape, Shape({2, 7, 9}));
  EXPECT_NE(shape, Shape({2, 7}));
}

TEST(ShapeTest, MissingDimIsABug) {
  EXPECT_DEATH(Shape({2, 3})[2], "dim 2 of shape \\[2, 3\\]");
  EXPECT_DEATH(Shape()[-1], "dim -1 of shape \\[\\]");
}

TEST(ShapeTest, Prints) {
  std::ostringstream out;
  out << Shape{2, 3} << Shape{};
  EXPECT_EQ(out.str(), "[2, 3][]");
}

}  // namespace
}  // namespace meshfold
