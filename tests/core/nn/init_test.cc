#include "core/nn/init.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/backend/backend.h"
#include "core/base/rng.h"
#include "core/nn/layers.h"
#include "core/nn/mlp.h"
#include "core/tensor/box.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

class InitTest : public ::testing::Test {
 protected:
  static Tensor Values(const std::string& name, const Shape& shape, uint64_t seed,
                       DType dtype = DType::kF32) {
    Parameter parameter = MakeParameter(name, shape, {InitSpec::Kind::kNormal, 0.02});
    parameter.dtype = dtype;
    Initialize(parameter, seed);
    return parameter.value.data();
  }

  ScopedTestContext context_;
};

TEST_F(InitTest, NormalValuesHaveTheirMeanAndDeviation) {
  std::vector<double> values = ToVector<double>(Values("w", {100, 256}, 7));
  double sum = 0, squares = 0;
  for (double v : values) sum += v, squares += v * v;
  double n = static_cast<double>(values.size());
  // Four standard errors.
  EXPECT_NEAR(sum / n, 0.0, 4 * 0.02 / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 4 * 0.02 / std::sqrt(2 * n));
}

// 256 columns have a padded pitch: the index is the logical one.
TEST_F(InitTest, ASliceDrawsTheValuesOfTheWhole) {
  Tensor whole = Values("w", {12, 256}, 7);
  Tensor slice = Tensor::Empty({5, 256});
  CurrentBackend().RandomNormal(MakeRngKey(7, "w"), 3 * 256, 0.0, 0.02, slice);
  ExpectBitEqual(slice, whole.Narrow(3, 5));
  Tensor odd = Tensor::Empty({7});
  CurrentBackend().RandomNormal(MakeRngKey(7, "w"), 2 * 256 + 17, 0.0, 0.02, odd);
  ExpectBitEqual(odd, whole.Select(2).Narrow(17, 7));
}

TEST_F(InitTest, ShapesOfTheSameElementsDrawTheSameValues) {
  ExpectBitEqual(Values("w", {2, 3, 256}, 7).AsMatrix(), Values("w", {6, 256}, 7));
}

TEST_F(InitTest, NamesAndSeedsDrawDifferentValues) {
  std::vector<float> w = ToVector<float>(Values("w", {8}, 7));
  EXPECT_NE(w, ToVector<float>(Values("v", {8}, 7)));
  EXPECT_NE(w, ToVector<float>(Values("w", {8}, 8)));
  EXPECT_EQ(w, ToVector<float>(Values("w", {8}, 7)));
}

TEST_F(InitTest, SixteenBitValuesAreRoundedFromF32) {
  std::vector<float> exact = ToVector<float>(Values("w", {3, 512}, 7));
  Tensor bf16 = Values("w", {3, 512}, 7, DType::kBF16), f16 = Values("w", {3, 512}, 7, DType::kF16);
  ASSERT_EQ(bf16.dtype(), DType::kBF16);
  std::vector<float> from_bf16 = ToVector<float>(bf16), from_f16 = ToVector<float>(f16);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(from_bf16[i], ToFloat(ToBF16(exact[i]))) << i;
    EXPECT_EQ(from_f16[i], ToFloat(ToF16(exact[i]))) << i;
  }
}

TEST_F(InitTest, ModulesInitializeAllTheirParameters) {
  SwiGluMlp mlp("mlp", {.hidden_size = 6, .intermediate_size = 4, .bias = true});
  RmsNormLayer norm("norm", 8, {}), zero_centered("zc", 8, {.groups = 2, .zero_centered = true});
  for (Module* module : std::vector<Module*>{&mlp, &norm, &zero_centered}) Initialize(*module, 3);
  ExpectBitEqual(ParameterNamed(mlp, "mlp.down.weight").value.data(),
                 Values("mlp.down.weight", {6, 4}, 3));
  ExpectClose(ParameterNamed(mlp, "mlp.down.bias").value.data(), std::vector<double>(6, 0.0), 0);
  ExpectClose(norm.weight().value.data(), std::vector<double>(8, 1.0), 0);
  ExpectClose(zero_centered.weight().value.data(), std::vector<double>(4, 0.0), 0);
}

// Every rank draws its part of what one process draws: rows, columns, middle dims, nothing.
TEST_F(InitTest, APartHasTheValuesOfThatPartOfTheWhole) {
  struct Case {
    Shape shape;
    std::vector<Box> parts;
  };
  const Case cases[] = {{{5, 256},
                         {Box{{0, 0}, {3, 256}}, Box{{3, 0}, {2, 256}}, Box{{5, 0}, {0, 256}},
                          Box{{0, 130}, {5, 126}}, Box{{1, 7}, {3, 1}}}},
                        {{3, 2, 5, 4},
                         {Box{{1, 0, 0, 0}, {2, 2, 5, 4}}, Box{{0, 0, 3, 0}, {3, 2, 2, 4}},
                          Box{{2, 1, 1, 2}, {1, 1, 3, 2}}}},
                        {{9}, {Box{{0}, {5}}, Box{{5}, {4}}}},
                        {{}, {Box()}}};
  for (const Case& c : cases) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Tensor whole = Values("w", c.shape, 7, dtype);
      for (const Box& box : c.parts) {
        Parameter parameter = MakeParameter("w", c.shape, {InitSpec::Kind::kNormal, 0.02});
        parameter.dtype = dtype;
        parameter.part = box;
        Initialize(parameter, 7);
        const Tensor wanted = UnwrittenTensor(box.shape(), dtype);
        CopyFromWhole(whole, box, wanted);
        ExpectBitEqual(WithPadding(parameter.value.data(), Padding::kNone), wanted,
                       box.ToString() + " of " + c.shape.ToString());
      }
    }
  }
  Parameter constant = MakeParameter("c", {4, 3}, {InitSpec::Kind::kConstant, 0.5});
  constant.part = {{1, 0}, {2, 3}};
  Initialize(constant, 7);
  ExpectClose(constant.value.data(), std::vector<double>(6, 0.5), 0);
}

TEST_F(InitTest, InitializingAgainCountsAsAWrite) {
  Parameter parameter = MakeParameter("w", {2}, {});
  Initialize(parameter, 1);
  uint64_t version = parameter.value.version();
  Initialize(parameter, 1);
  EXPECT_GT(parameter.value.version(), version);
}

}  // namespace
}  // namespace meshfold::testing
