#include "tests/reference/experts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
using testing::Padding;
using testing::RandomTensor;
using testing::ScopedTestContext;
using testing::UnwrittenTensor;

// Three products in a row, each of a few hundred terms.
constexpr double kTolerance = 1e-6;

struct ExpertsCase {
  std::vector<int64_t> counts;
  int64_t dim, features;
  bool weighted = true;
  DType dtype = DType::kF32;
};

// Inputs and outputs of one case; outputs start unwritten.
struct Tensors {
  explicit Tensors(const ExpertsCase& c, Padding padding = Padding::kNone) {
    for (int64_t count : c.counts) args.rows.offsets.push_back(args.rows.total() + count);
    const int64_t rows = args.rows.total();
    const auto random = [&](const std::string& name, const Shape& shape, DType dtype) {
      return RandomTensor(name, shape, {.stddev = 0.7, .dtype = dtype, .padding = padding});
    };
    const auto output = [&](const Shape& shape) {
      return UnwrittenTensor(shape, DType::kF32, padding);
    };
    args.x = random("x", {rows, c.dim}, DType::kF32);
    if (c.weighted) args.row_weights = RandomTensor("c", {rows});
    for (size_t g = 0; g < c.counts.size(); ++g) {
      gate_up.push_back(random(absl::StrCat("gate_up", g), {2 * c.features, c.dim}, c.dtype));
      down.push_back(random(absl::StrCat("down", g), {c.dim, c.features}, c.dtype));
      dgate_up.push_back(output({2 * c.features, c.dim}));
      ddown.push_back(output({c.dim, c.features}));
    }
    args.gate_up = gate_up;
    args.down = down;
    hidden = output({rows, 2 * c.features});
    y = output({rows, c.dim});
    backward.hidden = hidden;
    backward.dy = random("dy", {rows, c.dim}, DType::kF32);
    backward.dx = output({rows, c.dim});
    backward.drow_weights = UnwrittenTensor({rows});
    backward.dhidden = output({rows, 2 * c.features});
    backward.dgate_up = dgate_up;
    backward.ddown = ddown;
  }
  Tensors(const Tensors&) = delete;
  Tensors& operator=(const Tensors&) = delete;

  void Forward() { CurrentBackend().ExpertsForward(args, hidden, y); }
  void Backward() { CurrentBackend().ExpertsBackward(args, backward); }
  std::vector<Tensor> Outputs() const {
    std::vector<Tensor> out = {hidden, y, backward.dx, backward.drow_weights, backward.dhidden};
    out.insert(out.end(), dgate_up.begin(), dgate_up.end());
    out.insert(out.end(), ddown.begin(), ddown.end());
    return out;
  }

  ExpertsArgs args;
  ExpertsBackwardArgs backward;
  Tensor hidden, y;
  std::vector<Tensor> gate_up, down, dgate_up, ddown;
};

reference::ExpertTensors ReferenceTensors(const Tensors& t, const ExpertsCase& c) {
  reference::ExpertTensors out;
  out.x = ToVector<double>(t.args.x);
  out.offsets = t.args.rows.offsets;
  for (const Tensor& w : t.gate_up) out.gate_up.push_back(ToVector<double>(w));
  for (const Tensor& w : t.down) out.down.push_back(ToVector<double>(w));
  if (c.weighted) out.row_weights = ToVector<double>(t.args.row_weights);
  out.dim = c.dim;
  out.features = c.features;
  return out;
}

class ExpertsTest : public ::testing::TestWithParam<ExpertsCase> {};

// Odd sizes, empty experts in every place, one expert with nearly all rows (which runs on all
// threads), one row, no rows, no groups.
INSTANTIATE_TEST_SUITE_P(
    Cases, ExpertsTest,
    ::testing::Values(ExpertsCase{{3, 0, 5, 1}, 12, 7}, ExpertsCase{{0, 200, 3, 0}, 33, 20},
                      ExpertsCase{{1}, 5, 1}, ExpertsCase{{0, 0}, 4, 3}, ExpertsCase{{}, 4, 3},
                      ExpertsCase{{40, 41, 39, 40, 38, 42, 40, 40, 40}, 64, 48, false},
                      ExpertsCase{{9, 30}, 24, 18, true, DType::kBF16},
                      ExpertsCase{{9, 30}, 24, 18, false, DType::kF16}));

TEST_P(ExpertsTest, ForwardAndBackwardMatchTheReference) {
  ForEachVariant(
      [&](Padding padding) {
        Tensors t(GetParam(), padding);
        t.Forward();
        t.Backward();
        return t.Outputs();
      },
      [&](const std::vector<Tensor>& out) {
        const Tensors t(GetParam());
        const auto tensors = ReferenceTensors(t, GetParam());
        const auto forward = reference::Experts(tensors);
        const auto gradients = reference::ExpertsBackward(tensors, ToVector<double>(t.backward.dy));
        ExpectClose(out[0], forward.hidden, kTolerance, "hidden");
        ExpectClose(out[1], forward.y, kTolerance, "y");
        ExpectClose(out[2], gradients.dx, kTolerance, "dx");
        ExpectClose(out[3], gradients.drow_weights, kTolerance, "drow_weights");
        ExpectClose(out[4], gradients.dhidden, kTolerance, "dhidden");
        const size_t groups = t.gate_up.size();
        for (size_t g = 0; g < groups; ++g) {
          ExpectClose(out[5 + g], gradients.dgate_up[g], kTolerance, absl::StrCat("dgate_up ", g));
          ExpectClose(out[5 + groups + g], gradients.ddown[g], kTolerance,
                      absl::StrCat("ddown ", g));
        }
      });
}

TEST_P(ExpertsTest, DeferredWeightsHaveTheBitsOfTheJointCall) {
  ScopedTestContext context(2);
  Tensors joint(GetParam()), inputs(GetParam()), weights(GetParam());
  for (Tensors* t : {&joint, &inputs, &weights}) t->Forward();
  joint.Backward();
  inputs.backward.dgate_up = inputs.backward.ddown = {};
  inputs.Backward();
  weights.backward.dx = weights.backward.drow_weights = Tensor();
  weights.backward.dhidden = inputs.backward.dhidden;
  weights.backward.dhidden_is_input = true;
  weights.Backward();
  ExpectBitEqual(inputs.backward.dx, joint.backward.dx, "dx");
  ExpectBitEqual(inputs.backward.drow_weights, joint.backward.drow_weights, "drow_weights");
  for (size_t g = 0; g < joint.gate_up.size(); ++g) {
    ExpectBitEqual(weights.dgate_up[g], joint.dgate_up[g], "dgate_up");
    ExpectBitEqual(weights.ddown[g], joint.ddown[g], "ddown");
  }
}

TEST_P(ExpertsTest, OutputsMayBeLeftOutAndWeightsAccumulate) {
  ScopedTestContext context(2);
  Tensors all(GetParam()), some(GetParam());
  all.Forward();
  all.Backward();
  some.Forward();
  some.backward.dhidden = some.backward.drow_weights = some.backward.dx = Tensor();
  some.Backward();
  for (size_t g = 0; g < all.gate_up.size(); ++g) {
    ExpectBitEqual(some.dgate_up[g], all.dgate_up[g], "dgate_up alone");
  }
  some.backward.accumulate_weights = true;
  some.Backward();
  for (size_t g = 0; g < all.gate_up.size(); ++g) {
    const auto twice = [](double value) { return 2 * value; };
    ExpectClose(some.dgate_up[g], reference::Map(ToVector<double>(all.dgate_up[g]), twice), 0);
    ExpectClose(some.ddown[g], reference::Map(ToVector<double>(all.ddown[g]), twice), 0);
  }
}

// Expert parallelism cuts the rows of one expert and moves experts between ranks.
TEST(ExpertsInvarianceTest, AnExpertDoesNotSeeTheOthers) {
  ScopedTestContext context;
  const ExpertsCase both{{70, 130}, 40, 24}, one{{70}, 40, 24};
  Tensors t(both), alone(one);
  t.Forward();
  alone.Forward();  // the same first 70 rows and first expert, by name
  ExpectBitEqual(alone.y, t.y.Narrow(0, 70), "y");
}

}  // namespace
}  // namespace meshfold
