// The references judge the kernels; finite differences and golden values computed by another
// program in f64 judge the references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/reference/elementwise.h"
#include "tests/reference/norm_softmax.h"
#include "tests/reference/optimizer.h"
#include "tests/reference/rope.h"
#include "tests/reference/routing.h"
#include "tests/reference/rows.h"
#include "tests/testing/finite_difference.h"

namespace meshfold::reference {
namespace {

using ::meshfold::testing::CosineChecksum;
using ::meshfold::testing::Dot;
using ::meshfold::testing::ExpectGradient;
using ::meshfold::testing::SineSequence;
using ::testing::ElementsAre;

// Golden values are printed to 12 digits.
constexpr double kDigits = 1e-11;

struct NormGolden {
  Vec x = SineSequence(24, .3, .1), w = SineSequence(8, .7, .2);
  Vec dy = SineSequence(24, .9, .4), z = SineSequence(24, .4, .3);
  RmsNormConfig config = {.cols = 8};
};

TEST(NormReferenceTest, PlainGolden) {
  const NormGolden g;
  const Vec y = RmsNorm(g.x, g.w, g.config).y;
  EXPECT_NEAR(CosineChecksum(y), 6.969792099037, kDigits);
  EXPECT_NEAR(y.front(), 2.570881115e-2, kDigits);
  EXPECT_NEAR(y.back(), -0.9768517514, 1e-10);
  const RmsNormGradients gradients = RmsNormBackward(g.x, g.w, g.dy, g.config);
  EXPECT_NEAR(CosineChecksum(gradients.dx), 4.289016577101, kDigits);
  EXPECT_NEAR(gradients.dx.front(), 6.274650644e-2, kDigits);
  EXPECT_NEAR(gradients.dx.back(), -1.109812564, 1e-9);
  EXPECT_NEAR(CosineChecksum(gradients.dweight), 2.747843404107, kDigits);
}

TEST(NormReferenceTest, ZeroCenteredGolden) {
  NormGolden g;
  g.config.zero_centered = true;
  const Vec y = RmsNorm(g.x, g.w, g.config).y;
  EXPECT_NEAR(CosineChecksum(y), 3.251627268848, kDigits);
  EXPECT_NEAR(y.front(), 0.1551138434, 1e-10);
  EXPECT_NEAR(CosineChecksum(RmsNormBackward(g.x, g.w, g.dy, g.config).dx), 6.995206744331,
              kDigits);
}

// Norm before gate: y = norm(x) silu(z) or norm(x) sigmoid(z).
TEST(NormReferenceTest, GatedGolden) {
  const NormGolden g;
  const auto times = [](double a, double b) { return a * b; };
  const Vec normed = RmsNorm(g.x, g.w, g.config).y;
  const Vec silu = Map(g.z, SiluOf), sigmoid = Map(g.z, SigmoidOf);
  EXPECT_NEAR(CosineChecksum(Map(normed, silu, times)), 2.346793867605, kDigits);
  EXPECT_NEAR(CosineChecksum(RmsNormBackward(g.x, g.w, Map(g.dy, silu, times), g.config).dx),
              2.057958664212, kDigits);
  const Vec dgate = Map(g.dy, normed, times);
  EXPECT_NEAR(CosineChecksum(Map(dgate, Map(g.z, SiluSlope), times)), -1.051302232004, kDigits);
  EXPECT_NEAR(CosineChecksum(Map(normed, sigmoid, times)), 4.256481140312, kDigits);
  EXPECT_NEAR(CosineChecksum(RmsNormBackward(g.x, g.w, Map(g.dy, sigmoid, times), g.config).dx),
              2.893202095050, kDigits);
  EXPECT_NEAR(CosineChecksum(SigmoidBackward(sigmoid, dgate)), -0.162972293644, kDigits);
}

TEST(NormReferenceTest, GradientsMatchFiniteDifferences) {
  const Vec x = SineSequence(36, .7, .2, 1.5), w = SineSequence(4, .9, .1),
            dy = SineSequence(36, .5, .3);
  for (bool zero_centered : {false, true}) {
    const RmsNormConfig config = {
        .cols = 12, .groups = 3, .eps = 1e-2, .zero_centered = zero_centered};
    const RmsNormGradients gradients = RmsNormBackward(x, w, dy, config);
    ExpectGradient([&](const Vec& v) { return Dot(RmsNorm(v, w, config).y, dy); }, x, gradients.dx);
    ExpectGradient([&](const Vec& v) { return Dot(RmsNorm(x, v, config).y, dy); }, w,
                   gradients.dweight);
  }
}

TEST(RopeReferenceTest, HalfSplitGolden) {
  const RopeTables tables = MakeRopeTables(5, 4, 1e4);
  const Vec q = SineSequence(40, .37, .2);
  const Vec y = Rope(q, 1, 8, {0, 1, 2, 3, 4}, tables, 4, false);
  EXPECT_NEAR(CosineChecksum(y), -2.145772777550, kDigits);
  EXPECT_NEAR(y.front(), 0.1986693308, 1e-10);
  EXPECT_NEAR(y.back(), 0.8831931795, 1e-10);
  // The inverse is the adjoint and undoes the rotation.
  const Vec back = Rope(y, 1, 8, {0, 1, 2, 3, 4}, tables, 4, true);
  for (size_t i = 0; i < q.size(); ++i) EXPECT_NEAR(back[i], q[i], 1e-14);
  const Vec dy = SineSequence(40, .21, .5);
  EXPECT_NEAR(Dot(y, dy), Dot(q, Rope(dy, 1, 8, {0, 1, 2, 3, 4}, tables, 4, true)), 1e-13);
}

TEST(SwiGluReferenceTest, Golden) {
  const Vec g = SineSequence(12, .8, .3, 3), u = SineSequence(12, .55, .9, 2);
  const Vec da = SineSequence(12, .21, .5);
  Vec gate_up = g;
  gate_up.insert(gate_up.end(), u.begin(), u.end());
  EXPECT_NEAR(CosineChecksum(SwiGlu(gate_up, 12)), 9.402785125933, kDigits);
  const Vec gradient = SwiGluBackward(gate_up, da, 12);
  EXPECT_NEAR(CosineChecksum(Row(gradient, 0, 12)), 3.979706284533, kDigits);
  EXPECT_NEAR(CosineChecksum(Row(gradient, 1, 12)), 3.233960762798, kDigits);
  const Vec dy = SineSequence(12, .4, .1);
  ExpectGradient([&](const Vec& v) { return Dot(SwiGlu(v, 3), dy); }, gate_up,
                 SwiGluBackward(gate_up, dy, 3));
}

TEST(ElementwiseReferenceTest, GradientsMatchFiniteDifferences) {
  const Vec x = SineSequence(20, .7, .2, 2), dy = SineSequence(20, .5, .3);
  ExpectGradient([&](const Vec& v) { return Dot(Map(v, SigmoidOf), dy); }, x,
                 SigmoidBackward(Map(x, SigmoidOf), dy));
  ExpectGradient([&](const Vec& v) { return Dot(Clamp(v, -1, 1.5), dy); }, x,
                 ClampBackward(x, -1, 1.5, dy));
}

TEST(SoftmaxReferenceTest, GradientsMatchFiniteDifferences) {
  const Vec x = SineSequence(21, 1.3, .2, 2), dy = SineSequence(21, .5, .3);
  double sum = 0;
  for (double p : Softmax(Row(x, 0, 7), 7)) sum += p;
  EXPECT_NEAR(sum, 1, 1e-15);
  ExpectGradient([&](const Vec& v) { return Dot(Softmax(v, 7), dy); }, x,
                 SoftmaxBackward(Softmax(x, 7), dy, 7));
  const std::vector<int> valid = {1, 0, 1};
  ExpectGradient([&](const Vec& v) { return SquaredLogSumExp(v, 7, valid); }, x,
                 SquaredLogSumExpBackward(x, 7, valid));
}

TEST(RowsReferenceTest, GradientsMatchFiniteDifferences) {
  Vec w = SineSequence(12, .7, .2);
  for (double& v : w) v = v * v + .1;
  const Vec dy = SineSequence(12, .5, .3);
  ExpectGradient([&](const Vec& v) { return Dot(NormalizeRows(v, 4, .05, 2.5), dy); }, w,
                 NormalizeRowsBackward(w, 4, .05, 2.5, dy));
  const Ids ids = {2, 0, 3, 1, 1, 2};
  const Vec dout = SineSequence(6, .5, .3);
  ExpectGradient([&](const Vec& v) { return Dot(GatherCols(v, 4, ids, 2), dout); }, w,
                 GatherColsBackward(dout, 4, ids, 2));
  // A gather's adjoint adds rows; the combination of a gather by tokens is one too.
  const Vec rows = SineSequence(24, .3, .1);
  ExpectGradient([&](const Vec& v) { return Dot(GatherRows(v, 4, ids, 1), rows); },
                 SineSequence(16, .9, .3), AddEmbeddingGradient(Vec(16), 4, ids, rows));
  ExpectGradient(
      [&](const Vec& v) {
        return WeightedSum(v, {1, -2, 3, .5}, {1, 0, 1});
      },
      w, {1, -2, 3, .5, 0, 0, 0, 0, 1, -2, 3, .5});
}

struct RoutingGolden {
  Vec z = SineSequence(40, 1.3, .2, 2), bias = SineSequence(8, .9, .7, .3);
};

Ids SortedSet(const Ids& ids, int64_t token, int64_t top_k) {
  Ids set(ids.begin() + token * top_k, ids.begin() + (token + 1) * top_k);
  std::sort(set.begin(), set.end());
  return set;
}

TEST(RoutingReferenceTest, SigmoidGroupsGolden) {
  const RoutingGolden g;
  const Vec a = Map(g.z, SigmoidOf);
  const Ids ids =
      SelectExperts(a, g.bias, {.num_experts = 8, .top_k = 3, .num_groups = 4, .top_k_groups = 2});
  EXPECT_THAT(SortedSet(ids, 0, 3), ElementsAre(0, 1, 6));
  EXPECT_THAT(SortedSet(ids, 1, 3), ElementsAre(2, 3, 7));
  EXPECT_THAT(SortedSet(ids, 2, 3), ElementsAre(0, 1, 4));
  EXPECT_THAT(SortedSet(ids, 3, 3), ElementsAre(1, 6, 7));
  EXPECT_THAT(SortedSet(ids, 4, 3), ElementsAre(2, 3, 7));
  const Vec w = NormalizeRows(GatherCols(a, 8, {0, 1, 6}, 3), 3, 0, 2.5);
  EXPECT_NEAR(w[0], .6343688928, 1e-9);
  EXPECT_NEAR(w[1], .9337308488, 1e-9);
  EXPECT_NEAR(w[2], .9319002584, 1e-9);
}

TEST(RoutingReferenceTest, SoftmaxGolden) {
  const RoutingGolden g;
  const Vec p = Softmax(g.z, 8);
  const Ids ids = SelectExperts(p, {}, {.num_experts = 8, .top_k = 3});
  EXPECT_THAT(SortedSet(ids, 0, 3), ElementsAre(1, 5, 6));
  EXPECT_THAT(SortedSet(ids, 1, 3), ElementsAre(2, 3, 7));
  EXPECT_THAT(SortedSet(ids, 2, 3), ElementsAre(0, 4, 5));
  EXPECT_THAT(SortedSet(ids, 3, 3), ElementsAre(1, 2, 6));
  EXPECT_THAT(SortedSet(ids, 4, 3), ElementsAre(2, 3, 7));
  const Vec raw = GatherCols(p, 8, {1, 5, 6}, 3), w = NormalizeRows(raw, 3, 0, 1);
  EXPECT_NEAR(raw[0], .3347150238, 1e-10);
  EXPECT_NEAR(raw[1], .1023081526, 1e-10);
  EXPECT_NEAR(w[0], .436773593, 1e-9);
  EXPECT_NEAR(w[2], .4297232888, 1e-10);
  // Balance loss E sum (n_e / T) P_e: 3.084 as Hugging Face, a third of it as Megatron.
  const SortedRows sorted = SortByExpert(ids, 3, 8, {}, {});
  Vec coefficients;
  for (int32_t n : sorted.routed) coefficients.push_back(8 * (n / 5.0) / 5.0);
  EXPECT_NEAR(WeightedSum(p, coefficients, std::vector<int>(5, 1)), 3.084459348891, kDigits);
}

TEST(RoutingReferenceTest, SortsAndDrops) {
  // Five tokens all prefer expert 0 of 4, capacity 4: one is dropped.
  const SortedRows sorted = SortByExpert({0, 0, 0, 0, 0}, 1, 4, {4, 4, 4, 4}, {});
  EXPECT_THAT(sorted.counts, ElementsAre(4, 0, 0, 0));
  EXPECT_THAT(sorted.routed, ElementsAre(5, 0, 0, 0));
  EXPECT_THAT(sorted.row_to_slot, ElementsAre(0, 1, 2, 3, -1));
  EXPECT_THAT(sorted.token_rows, ElementsAre(0, 1, 2, 3, -1));
}

TEST(OptimizerReferenceTest, FirstAdamStepIsTheLearningRate) {
  const AdamWState s = AdamW({{1}, {0}, {0}}, {1}, {.lr = .1, .eps = 0}, 1);
  EXPECT_NEAR(s.param[0], .9, 1e-15);
}

// Three steps of torch.optim.AdamW(lr=.1, weight_decay=.01) and SGD(lr=.1, momentum=.9) written
// out by hand for gradients 1, -2, .5 from parameter 1.
TEST(OptimizerReferenceTest, HandComputedSteps) {
  AdamWState s = {{1}, {0}, {0}};
  const double m[] = {.1, -.11, -.049};
  const double v[] = {.001, .004999, .005244001};
  double p = 1;
  const double grads[] = {1, -2, .5};
  for (int t = 1; t <= 3; ++t) {
    s = AdamW(s, {grads[t - 1]}, {.lr = .1, .weight_decay = .01}, t);
    p = p * .999 - .1 * (m[t - 1] / (1 - std::pow(.9, t))) /
                       (std::sqrt(v[t - 1] / (1 - std::pow(.999, t))) + 1e-8);
    EXPECT_NEAR(s.m[0], m[t - 1], 1e-15);
    EXPECT_NEAR(s.v[0], v[t - 1], 1e-15);
    EXPECT_NEAR(s.param[0], p, 1e-14);
  }
  SgdState sgd = {{1}, {0}};
  for (int t = 0; t < 3; ++t) sgd = Sgd(sgd, {grads[t]}, .1, .9, 0);
  // Buffers 1, -1.1, -.49.
  EXPECT_NEAR(sgd.param[0], 1 - .1 * (1 - 1.1 - .49), 1e-15);
  EXPECT_THAT(BlockSquareSums(Vec(1025, 2)), ElementsAre(4096, 4));
}

}  // namespace
}  // namespace meshfold::reference
