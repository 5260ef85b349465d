#include "parallel/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "tests/optim/parameters.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

using testing::Padding;

// Parameters with random gradients of odd sizes, one of them zero: an idle expert.
std::vector<Parameter> MakeParameters(Padding padding) {
  std::vector<Parameter> parameters;
  for (const Shape& shape : {Shape{3, 700}, Shape{1024}, Shape{5, 2, 131}, Shape{1}, Shape{0, 4}}) {
    const std::string name = "p" + shape.ToString();
    parameters.push_back(testing::ParameterOf(name, testing::RandomTensor(name, shape)));
    LeafGrad& grad = parameters.back().value.grad();
    grad.SetBuffer(testing::UnwrittenTensor(shape, DType::kF32, padding));
    testing::SetGradient(parameters.back(), testing::RandomTensor("g" + name, shape));
  }
  parameters.push_back(testing::ParameterOf("idle", testing::MakeTensor({1, 2}, {2})));
  parameters.back().value.grad().FinishWithZero(parameters.back().value.data(), 0);
  return parameters;
}

std::vector<Parameter*> PointersTo(std::vector<Parameter>& parameters) {
  std::vector<Parameter*> pointers;
  for (Parameter& parameter : parameters) pointers.push_back(&parameter);
  return pointers;
}

double BruteForceNorm(const std::vector<Parameter>& parameters) {
  double sum = 0;
  for (const Parameter& parameter : parameters) {
    for (double value : ToVector<double>(parameter.value.grad().tensor())) sum += value * value;
  }
  return std::sqrt(sum);
}

// The norm of one vector given as gradients of parameters of these sizes.
double NormInParts(const std::vector<float>& values, const std::vector<int64_t>& sizes) {
  std::vector<Parameter> parameters;
  auto at = values.begin();
  for (int64_t size : sizes) {
    Tensor part = TensorFromVector(std::vector<float>(at, at + size), {size});
    parameters.push_back(testing::ParameterOf("p", part));
    testing::SetGradient(parameters.back(), part);
    at += size;
  }
  return GradNorm(PointersTo(parameters));
}

class GradNormTest : public ::testing::Test {
 protected:
  testing::ScopedTestContext context_;
};

TEST_F(GradNormTest, EqualsTheBruteForceInF64) {
  std::vector<Parameter> parameters = MakeParameters(Padding::kNone);
  // Only the order of f64 sums differs.
  EXPECT_NEAR(GradNorm(PointersTo(parameters)) / BruteForceNorm(parameters), 1, 1e-13);
  EXPECT_EQ(GradNorm({}), 0);
}

TEST_F(GradNormTest, DependsNeitherOnPitchesNorThreadsNorOnWhereTensorsAreCut) {
  std::vector<Parameter> plain = MakeParameters(Padding::kNone),
                         padded = MakeParameters(Padding::kGuarded);
  const double norm = GradNorm(PointersTo(plain));
  EXPECT_EQ(GradNorm(PointersTo(padded)), norm);
  context_.context().num_threads = 3;
  EXPECT_EQ(GradNorm(PointersTo(plain)), norm);
  std::vector<float> values = ToVector<float>(testing::RandomTensor("v", {5000}));
  const double whole = NormInParts(values, {5000});
  EXPECT_EQ(NormInParts(values, {1024, 3976}), whole);
  EXPECT_EQ(NormInParts(values, {2048, 1024, 1928}), whole);
}

TEST_F(GradNormTest, DoesNotOverflowWhereF32Would) {
  std::vector<Parameter> parameters;
  parameters.push_back(testing::ParameterOf("p", testing::MakeTensor({0, 0}, {2})));
  testing::SetGradient(parameters[0], testing::MakeTensor({3e30, 4e30}, {2}));
  EXPECT_NEAR(GradNorm(PointersTo(parameters)) / 5e30, 1, 1e-6);
}

TEST_F(GradNormTest, IsNotFiniteWhenAGradientIsNot) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                    -std::numeric_limits<float>::infinity()}) {
    for (size_t index : {size_t{0}, size_t{2}, size_t{4}}) {
      std::vector<Parameter> parameters = MakeParameters(Padding::kNone);
      const Tensor& grad = parameters[index < 4 ? index : 3].value.grad().tensor();
      grad.AsMatrix().NarrowCols(grad.cols() - 1, 1).row<float>(grad.rows() - 1)[0] = bad;
      EXPECT_FALSE(std::isfinite(GradNorm(PointersTo(parameters)))) << bad << " in " << index;
    }
  }
}

TEST_F(GradNormTest, LeavesOutBuffersAndFrozenParameters) {
  std::vector<Parameter> parameters = MakeParameters(Padding::kNone);
  const double rest = GradNorm({&parameters[1]});
  EXPECT_NE(GradNorm(PointersTo(parameters)), rest);
  for (size_t i : {0u, 4u, 5u}) parameters[i].trained = false;
  for (size_t i : {2u, 3u}) parameters[i].value.set_requires_grad(false);
  EXPECT_EQ(GradNorm(PointersTo(parameters)), rest);
}

TEST_F(GradNormTest, RefusesAMissingGradient) {
  Parameter parameter = testing::ParameterOf("p", testing::MakeTensor({1}, {1}));
  EXPECT_DEATH(GradNorm({&parameter}), "'p' has no gradient");
  testing::SetGradient(parameter, testing::MakeTensor({1}, {1}));
  parameter.value.grad().Reset();  // the buffer stays and holds last step's
  EXPECT_DEATH(GradNorm({&parameter}), "'p' has no gradient");
}

TEST_F(GradNormTest, ClipScaleIsTorchs) {
  auto scale = [](double norm, double max_norm) {
    return static_cast<double>(ClipScale(norm, max_norm).data<float>()[0]);
  };
  EXPECT_FLOAT_EQ(scale(4, 1), 1 / (4 + 1e-6));
  EXPECT_FLOAT_EQ(scale(1e-3, 1e-3), 1e-3 / (1e-3 + 1e-6));  // the 1e-6 shows
  EXPECT_EQ(scale(0.5, 1), 1);
  EXPECT_EQ(scale(0, 1), 1);
  EXPECT_EQ(scale(100, 0), 1);  // off
  EXPECT_EQ(scale(std::numeric_limits<double>::infinity(), 1), 0);
  EXPECT_TRUE(std::isnan(scale(std::numeric_limits<double>::quiet_NaN(), 1)));
}

// A vector cut over tp with gradient 3 on one rank and 4 on the other, beside one that both hold.
TEST(GradNormPartsTest, EveryPartCountsOnce) {
  const RankLayout ranks = PlanRanks({.data = 1, .tensor = 2}, 2).value();
  testing::ScopedTestContext context;
  const absl::Status status = comm::RunThreadWorld({.size = 2}, [&](comm::Communicator& world) {
    const auto parameter = [](double gradient) {
      Parameter made = testing::ParameterOf("p", testing::MakeTensor({1}, {1}));
      made.value.grad().SetBuffer(testing::UnwrittenTensor({1}));
      testing::SetGradient(made, testing::MakeTensor({gradient}, {1}));
      return made;
    };
    Parameter cut = parameter(world.rank() == 0 ? 3 : 4), held = parameter(12);
    cut.shape = {2};
    cut.layout.placements = {{.axis = "tp", .dim = 0, .parts = 2}};
    const std::vector<Parameter*> only_cut = {&cut}, both = {&cut, &held};
    const auto norm = [&](const std::vector<Parameter*>& parameters) {
      return GradNorm(PartsForNorm(parameters, ranks, world.rank()).value(), world);
    };
    EXPECT_DOUBLE_EQ(norm(only_cut), 5.0);
    EXPECT_DOUBLE_EQ(norm(both), 13.0);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace meshfold::parallel
