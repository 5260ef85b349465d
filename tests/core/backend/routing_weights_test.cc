#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/backend/backend.h"
#include "tests/reference/rows.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/kernel_variants.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold {
namespace {

using reference::Ids;
using reference::Vec;
using testing::ExpectBitEqual;
using testing::ExpectClose;
using testing::ForEachVariant;
using testing::MakeIds;
using testing::MakeTensor;
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// Factors are rounded to f32 once, products once more.
constexpr double kTolerance = 3e-7;

struct WeightsCase {
  int64_t tokens, experts, top_k;
};

class RoutingWeightsTest : public ::testing::TestWithParam<WeightsCase> {
 protected:
  int64_t tokens() const { return GetParam().tokens; }
  int64_t experts() const { return GetParam().experts; }
  int64_t top_k() const { return GetParam().top_k; }

  Tensor Scores(Padding padding) const {
    return RandomTensor("scores", {tokens(), experts()}, {.padding = padding});
  }
  Tensor Small(const char* name, Padding padding) const {
    return RandomTensor(name, {tokens(), top_k()}, {.mean = 1, .stddev = 0.2, .padding = padding});
  }
  // Distinct experts of each token.
  Ids ChosenIds() const {
    Ids ids;
    for (int64_t t = 0; t < tokens(); ++t) {
      for (int64_t k = 0; k < top_k(); ++k) {
        ids.push_back(static_cast<int32_t>((t * 5 + k * 3 + t / experts()) % experts()));
      }
    }
    return ids;
  }
  // A permutation of the slots with every seventh dropped.
  Ids SlotIndex() const {
    Ids index;
    const int64_t n = tokens() * top_k();
    for (int64_t i = 0; i < n; ++i) {
      index.push_back(i % 7 == 3 ? -1 : static_cast<int32_t>(n - 1 - i));
    }
    return index;
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, RoutingWeightsTest,
                         ::testing::Values(WeightsCase{0, 4, 2}, WeightsCase{1, 1, 1},
                                           WeightsCase{9, 8, 3}, WeightsCase{9001, 31, 8}));

TEST_P(RoutingWeightsTest, GatherAndScatterElements) {
  const int64_t slots = tokens() * top_k();
  ForEachVariant(
      [&](Padding padding) {
        const Tensor x = Small("x", padding), index = MakeIds(SlotIndex(), {slots});
        const Tensor gathered = UnwrittenTensor({slots});
        CurrentBackend().GatherElements(x, index, gathered);
        const Tensor scattered = UnwrittenTensor({tokens(), top_k()}, DType::kF32, padding);
        CurrentBackend().ScatterElements(gathered, index, scattered);
        return std::vector<Tensor>{gathered, scattered};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec gathered =
            reference::GatherElements(ToVector<double>(Small("x", Padding::kNone)), SlotIndex());
        ExpectClose(out[0], gathered, 0);
        ExpectClose(out[1], reference::ScatterElements(gathered, SlotIndex(), slots), 0);
      });
}

TEST_P(RoutingWeightsTest, GatherColsAndBackward) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor ids = MakeIds(ChosenIds(), {tokens(), top_k()}, padding);
        const Tensor out = UnwrittenTensor({tokens(), top_k()}, DType::kF32, padding);
        const Tensor dscores = UnwrittenTensor({tokens(), experts()}, DType::kF32, padding);
        CurrentBackend().GatherCols(Scores(padding), ids, out);
        CurrentBackend().GatherColsBackward(ids, Small("dout", padding), dscores);
        return std::vector<Tensor>{out, dscores};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec scores = ToVector<double>(Scores(Padding::kNone));
        const Vec dout = ToVector<double>(Small("dout", Padding::kNone));
        ExpectClose(out[0], reference::GatherCols(scores, experts(), ChosenIds(), top_k()), 0);
        ExpectClose(out[1], reference::GatherColsBackward(dout, experts(), ChosenIds(), top_k()),
                    0);
      });
}

TEST_P(RoutingWeightsTest, NormalizeRowsAndBackward) {
  ForEachVariant(
      [&](Padding padding) {
        const Tensor w = Small("w", padding), dout = Small("dout", padding);
        const Tensor out = UnwrittenTensor({tokens(), top_k()}, DType::kF32, padding);
        const Tensor dw = UnwrittenTensor({tokens(), top_k()}, DType::kF32, padding);
        CurrentBackend().NormalizeRows(w, 1e-2, 2.5, out);
        CurrentBackend().NormalizeRowsBackward(w, 1e-2, 2.5, dout, dw);
        CurrentBackend().NormalizeRowsBackward(w, 1e-2, 2.5, dout, dout);
        ExpectBitEqual(dout, dw, "gradient in place");
        CurrentBackend().NormalizeRows(w, 1e-2, 2.5, w);
        ExpectBitEqual(w, out, "in place");
        return std::vector<Tensor>{out, dw};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec w = ToVector<double>(Small("w", Padding::kNone));
        const Vec dout = ToVector<double>(Small("dout", Padding::kNone));
        ExpectClose(out[0], reference::NormalizeRows(w, top_k(), 1e-2, 2.5), kTolerance);
        // The gradient is a difference of numbers up to 100 times larger when one expert is chosen.
        ExpectClose(out[1], reference::NormalizeRowsBackward(w, top_k(), 1e-2, 2.5, dout),
                    top_k() == 1 ? 100 * kTolerance : 2 * kTolerance);
      });
}

TEST_P(RoutingWeightsTest, WeightedSumAndBackward) {
  std::vector<int> valid(tokens());
  for (int64_t t = 0; t < tokens(); ++t) valid[t] = t % 5 != 2;
  const auto valid_tensor = [&] {
    return MakeTensor(Vec(valid.begin(), valid.end()), {tokens()}, DType::kU8);
  };
  const auto coefficients = [&] { return RandomTensor("c", {experts()}, {.mean = 1}); };
  ForEachVariant(
      [&](Padding padding) {
        const Tensor some = UnwrittenTensor({1}), all = UnwrittenTensor({1});
        const Tensor dx = UnwrittenTensor({tokens(), experts()}, DType::kF32, padding);
        CurrentBackend().WeightedSum(Scores(padding), coefficients(), valid_tensor(), some);
        CurrentBackend().WeightedSum(Scores(padding), coefficients(), Tensor(), all);
        CurrentBackend().WeightedSumBackward(coefficients(), valid_tensor(), MakeTensor({3}, {1}),
                                             dx);
        return std::vector<Tensor>{some, all, dx};
      },
      [&](const std::vector<Tensor>& out) {
        const Vec x = ToVector<double>(Scores(Padding::kNone));
        const Vec c = ToVector<double>(coefficients());
        ExpectClose(out[0], {reference::WeightedSum(x, c, valid)}, kTolerance);
        ExpectClose(out[1], {reference::WeightedSum(x, c, std::vector<int>(tokens(), 1))},
                    kTolerance);
        Vec dx(x.size());
        for (size_t i = 0; i < dx.size(); ++i) {
          dx[i] = valid[i / experts()] ? 3 * c[i % experts()] : 0;
        }
        ExpectClose(out[2], dx, kTolerance);
      });
}

// f32 sums of a million ones in sequence would stop at 2^24.
TEST(WeightedSumTest, AccumulatesInDoublePrecision) {
  ScopedTestContext context;
  const int64_t rows = 4096, cols = 4200;
  const Tensor x = Tensor::Contiguous({rows, cols}), sum = UnwrittenTensor({1});
  const Tensor ones = Tensor::Contiguous({cols});
  context.backend().Fill(1 + 0x1p-20, x);
  context.backend().Fill(1, ones);
  context.backend().WeightedSum(x, ones, Tensor(), sum);
  EXPECT_EQ(sum.data<float>()[0], static_cast<float>((1 + 0x1p-20) * rows * cols));
}

TEST(RoutingWeightsEdgeTest, NegativeIdsGiveZeroAndTakeNoGradient) {
  ScopedTestContext context;
  const Tensor ids = MakeIds({1, -1}, {1, 2}), out = UnwrittenTensor({1, 2});
  const Tensor dscores = UnwrittenTensor({1, 2});
  context.backend().GatherCols(MakeTensor({5, 6}, {1, 2}), ids, out);
  ExpectClose(out, Vec{6, 0}, 0);
  context.backend().GatherColsBackward(ids, MakeTensor({3, 4}, {1, 2}), dscores);
  ExpectClose(dscores, Vec{0, 3}, 0);
}

}  // namespace
}  // namespace meshfold
