#include "tests/reference/rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/backend/backend.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Ids;
using reference::Vec;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeIds;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomIds;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// A few f32 additions.
constexpr double kTolerance = 1e-6;

struct RowsCase {
  int64_t source_rows, rows, cols;
};

class RowsTest : public ::testing::TestWithParam<RowsCase> {
 protected:
  Tensor Source(Padding padding, DType dtype = DType::kF32) const {
    return RandomTensor("source", {GetParam().source_rows, GetParam().cols},
                        {.dtype = dtype, .padding = padding});
  }
  Tensor Output(Padding padding, DType dtype = DType::kF32) const {
    return UnwrittenTensor({GetParam().rows, GetParam().cols}, dtype, padding);
  }
  Tensor TableIds() const {
    return RandomIds("ids", {GetParam().rows}, 0, static_cast<int32_t>(GetParam().source_rows));
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, RowsTest,
                         ::testing::Values(RowsCase{1, 0, 4}, RowsCase{5, 1, 1}, RowsCase{4, 9, 33},
                                           RowsCase{300, 701, 129}, RowsCase{2, 50, 2048}));

TEST_P(RowsTest, GatherRows) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI64}) {
    for (int64_t divisor : {1, 3}) {
      const int32_t limit = static_cast<int32_t>(GetParam().source_rows * divisor);
      const auto index = [&] { return RandomIds("index", {GetParam().rows}, -1, limit); };
      ForEachVariant(
          [&](Padding padding) {
            const Tensor out = Output(padding, dtype);
            CurrentBackend().GatherRows(Source(padding, dtype), index(), divisor, out);
            return std::vector<Tensor>{out};
          },
          [&](const std::vector<Tensor>& out) {
            const Vec x = ToVector<double>(Source(Padding::kNone, dtype));
            ExpectClose(
                out[0],
                reference::GatherRows(x, GetParam().cols, ToVector<int32_t>(index()), divisor), 0);
          });
    }
  }
}

// More rows a token than the kernel sums at a time; tokens with gaps and with no rows at all.
TEST_P(RowsTest, CombineRows) {
  for (int64_t top_k : {1, 3, 37}) {
    const int32_t limit = static_cast<int32_t>(GetParam().source_rows);
    const auto token_rows = [&](Padding padding) {
      return RandomIds("token_rows", {GetParam().rows, top_k}, -2, limit, padding);
    };
    ForEachVariant(
        [&](Padding padding) {
          const Tensor out = Output(padding);
          CurrentBackend().CombineRows(Source(padding), token_rows(padding), out);
          return std::vector<Tensor>{out};
        },
        [&](const std::vector<Tensor>& out) {
          const Vec y = ToVector<double>(Source(Padding::kNone));
          const Ids rows = ToVector<int32_t>(token_rows(Padding::kNone));
          ExpectClose(out[0], reference::CombineRows(y, GetParam().cols, rows, top_k), kTolerance);
        });
  }
}

TEST_P(RowsTest, Embedding) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    ForEachVariant(
        [&](Padding padding) {
          const Tensor out = Output(padding);
          CurrentBackend().Embedding(Source(padding, dtype), TableIds(), out);
          return std::vector<Tensor>{out};
        },
        [&](const std::vector<Tensor>& out) {
          const Vec table = ToVector<double>(Source(Padding::kNone, dtype));
          ExpectClose(
              out[0],
              reference::GatherRows(table, GetParam().cols, ToVector<int32_t>(TableIds()), 1), 0);
        });
  }
}

TEST_P(RowsTest, EmbeddingBackward) {
  const auto dy = [&](Padding padding) {
    return RandomTensor("dy", {GetParam().rows, GetParam().cols}, {.padding = padding});
  };
  ForEachVariant(
      [&](Padding padding) {
        const Tensor written =
            UnwrittenTensor({GetParam().source_rows, GetParam().cols}, DType::kF32, padding);
        CurrentBackend().EmbeddingBackward(TableIds(), dy(padding), false, written);
        const Tensor added = Source(padding);
        CurrentBackend().EmbeddingBackward(TableIds(), dy(padding), true, added);
        return std::vector<Tensor>{written, added};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec gradient = ToVector<double>(dy(Padding::kNone));
        const Ids ids = ToVector<int32_t>(TableIds());
        const Vec table = ToVector<double>(Source(Padding::kNone));
        ExpectClose(
            out[0],
            reference::AddEmbeddingGradient(Vec(table.size()), GetParam().cols, ids, gradient),
            kTolerance);
        ExpectClose(out[1], reference::AddEmbeddingGradient(table, GetParam().cols, ids, gradient),
                    kTolerance);
      });
}

// (1e8 + 1) - 1e8 is 0 in f32, while 1e8 - 1e8 + 1 is 1: the order of tokens shows.
TEST(RowsOrderTest, SumsFollowTokenAndSlotOrder) {
  ScopedTestContext context(/*num_threads=*/2);
  const Tensor dy = MakeTensor({1e8, 1, -1e8, 1e8, -1e8, 1}, {6, 1});
  const Tensor dtable = UnwrittenTensor({2, 1});
  context.backend().EmbeddingBackward(MakeIds({0, 0, 0, 1, 1, 1}, {6}), dy, false, dtable);
  ExpectClose(dtable, Vec{0, 1}, 0);
  const Tensor out = UnwrittenTensor({2, 1});
  context.backend().CombineRows(dy, MakeIds({0, 1, 2, 0, 2, 1}, {2, 3}), out);
  ExpectClose(out, Vec{0, 1}, 0);
}

TEST(RowsOrderTest, NegativeIdsAreOfAnotherPartOfTheTable) {
  ScopedTestContext context;
  const Tensor table = MakeTensor({1, 2, 3, 4}, {2, 2}), out = UnwrittenTensor({3, 2});
  const Tensor ids = MakeIds({-1, 1, -7}, {3});
  context.backend().Embedding(table, ids, out);
  ExpectClose(out, Vec{0, 0, 3, 4, 0, 0}, 0);
  const Tensor dtable = UnwrittenTensor({2, 2});
  context.backend().EmbeddingBackward(ids, MakeTensor({5, 6, 7, 8, 9, 10}, {3, 2}), false, dtable);
  ExpectClose(dtable, Vec{0, 0, 7, 8}, 0);
}

TEST(RowsOrderTest, IdsOutsideTheTableAreABug) {
  ScopedTestContext context;
  const Tensor table = RandomTensor("t", {3, 2}), out = UnwrittenTensor({1, 2});
  EXPECT_DEATH(context.backend().Embedding(table, MakeIds({3}, {1}), out), "3 .* 3.*id");
  EXPECT_DEATH(context.backend().EmbeddingBackward(MakeIds({3}, {1}), out, false, table),
               "3 .* 3.*id");
  EXPECT_DEATH(context.backend().GatherRows(table, MakeIds({6}, {1}), 2, out), "from_row");
  EXPECT_DEATH(context.backend().CombineRows(table, MakeIds({3}, {1, 1}), out), "rows");
}

}  // namespace
}  // namespace meshfold
