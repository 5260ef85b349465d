#include "tests/reference/rope.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Vec;
using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeIds;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::UnwrittenTensor;

struct RopeCase {
  int64_t tokens, heads, head_dim, pairs;
};

class RopeTest : public ::testing::TestWithParam<RopeCase> {
 protected:
  static constexpr int64_t kPositions = 50;

  Shape InputShape() const { return {GetParam().tokens, GetParam().heads * GetParam().head_dim}; }
  Tensor Input(Padding padding) const {
    return RandomTensor("x", InputShape(), {.padding = padding});
  }
  // Two documents: positions restart.
  std::vector<int> Positions() const {
    std::vector<int> positions;
    for (int64_t t = 0; t < GetParam().tokens; ++t) positions.push_back(static_cast<int>(t % 47));
    return positions;
  }
  reference::RopeTables Tables() const {
    return reference::MakeRopeTables(kPositions, GetParam().pairs, 1e4);
  }
  void Rotate(const Tensor& x, bool inverse, const Tensor& out, Padding padding) const {
    const auto tables = Tables();
    const Shape shape = {kPositions, GetParam().pairs};
    CurrentBackend().Rope(x, GetParam().heads, MakeIds(Positions(), {GetParam().tokens}),
                          MakeTensor(tables.cos, shape, DType::kF32, padding),
                          MakeTensor(tables.sin, shape, DType::kF32, padding), inverse, out);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, RopeTest,
                         ::testing::Values(RopeCase{0, 2, 4, 2}, RopeCase{3, 1, 2, 1},
                                           RopeCase{5, 3, 14, 7}, RopeCase{7, 2, 20, 3},
                                           RopeCase{101, 5, 128, 64}, RopeCase{100, 6, 256, 32}));

TEST_P(RopeTest, RotatesAndRotatesBack) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor x = Input(padding);
        const Tensor y = UnwrittenTensor(InputShape(), DType::kF32, padding);
        const Tensor back = UnwrittenTensor(InputShape(), DType::kF32, padding);
        Rotate(x, false, y, padding);
        Rotate(y, true, back, padding);
        Rotate(x, false, x, padding);
        ExpectBitEqual(x, y, "in place");
        return std::vector<Tensor>{y, back};
      },
      [&](const std::vector<Tensor>& out) {
        const RopeCase& c = GetParam();
        const Vec x = ToVector<double>(Input(Padding::kNone));
        // Tables rounded to f32 and three rounded operations.
        ExpectClose(out[0],
                    reference::Rope(x, c.heads, c.head_dim, Positions(), Tables(), c.pairs, false),
                    3e-7);
        ExpectClose(out[1], x, 5e-7, "rotated back");
      });
}

TEST(RopeEdgeTest, PositionPastTheTableIsABug) {
  testing::ScopedTestContext context;
  const Tensor x = RandomTensor("x", {1, 2}), table = RandomTensor("t", {4, 1});
  EXPECT_DEATH(context.backend().Rope(x, 1, MakeIds({4}, {1}), table, table, false, x),
               "position 4 of 4");
}

}  // namespace
}  // namespace meshfold
