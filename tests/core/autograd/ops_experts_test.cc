// Grouped SwiGLU experts against f64.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/experts.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using reference::ExpertTensors;
using reference::Vec;

// Two f32 GEMMs and an exp, relative to the largest element.
constexpr double kTolerance = 5e-6;

struct ExpertsCase {
  std::vector<int64_t> offsets;
  int64_t d, f;
  DType dtype = DType::kF32;
  int64_t groups() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t rows() const { return offsets.back(); }
  std::string what() const {
    return absl::StrCat(rows(), " rows in ", groups(), " groups, ", d, " -> ", f, " ",
                        DTypeName(dtype));
  }
};

// Skewed, with idle experts, padded, empty, bf16.
std::vector<ExpertsCase> Cases() {
  return {{{0, 3, 3, 8}, 5, 4}, {{0, 7}, 6, 3},
          {{0, 0, 1, 1}, 4, 2}, {{0, 4, 9}, 3, 4, DType::kBF16},
          {{0, 2, 3}, 256, 1},  {{0, 0, 0}, 3, 2}};
}

class OpsExpertsTest : public ::testing::Test {
 protected:
  // Inputs x, gate_up [E, 2, F, D], down [E, D, F], weights [R].
  static std::vector<Tensor> Inputs(const ExpertsCase& c) {
    return {Guarded("x", {c.rows(), c.d}), Guarded("gate_up", {c.groups(), 2, c.f, c.d}, c.dtype),
            Guarded("down", {c.groups(), c.d, c.f}, c.dtype), Guarded("weights", {c.rows()})};
  }

  static Expected Reference(const ExpertsCase& c, const std::vector<Tensor>& in, const Tensor& dy,
                            bool weighted) {
    ExpertTensors t{.x = F64(in[0]), .offsets = c.offsets, .dim = c.d, .features = c.f};
    if (weighted) t.row_weights = F64(in[3]);
    for (int64_t e = 0; e < c.groups(); ++e) {
      t.gate_up.push_back(F64(in[1].Select(e)));
      t.down.push_back(F64(in[2].Select(e)));
    }
    reference::ExpertsGradients grads = reference::ExpertsBackward(t, F64(dy));
    return {reference::Experts(t).y,
            {grads.dx, Joined(grads.dgate_up), Joined(grads.ddown), grads.drow_weights}};
  }

  static Vec Joined(const std::vector<Vec>& parts) {
    Vec all;
    for (const Vec& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  ScopedTestContext context_;
};

TEST_F(OpsExpertsTest, AllExpertsInTwoParameters) {
  for (const ExpertsCase& c : Cases()) {
    std::vector<Tensor> in = Inputs(c);
    Tensor dy = Guarded("dy", {c.rows(), c.d});
    ExpectOp([&](const auto& v) { return Experts(v[0], RowCounts{c.offsets}, v[1], v[2], v[3]); },
             in, dy, Reference(c, in, dy, true), kTolerance, c.what());
  }
}

TEST_F(OpsExpertsTest, WithoutRowWeights) {
  for (const ExpertsCase& c : Cases()) {
    std::vector<Tensor> in = Inputs(c);
    Tensor dy = Guarded("dy", {c.rows(), c.d});
    Expected expected = Reference(c, in, dy, false);
    in.pop_back();
    expected.grads.pop_back();
    auto op = [&](const auto& v) {
      return Experts(v[0], RowCounts{c.offsets}, v[1], v[2], Variable());
    };
    ExpectOp(op, in, dy, expected, kTolerance, c.what());
  }
}

// Own experts and travelled copies stand side by side: one parameter a group.
TEST_F(OpsExpertsTest, OneParameterAGroupGivesTheSameBits) {
  ExpertsCase c{{0, 3, 3, 8}, 5, 4};
  std::vector<Tensor> in = Inputs(c);
  Tensor dy = Guarded("dy", {8, 5});
  Variable x(in[0]), gate_up = Variable::Leaf(in[1]), down = Variable::Leaf(in[2]);
  std::vector<Variable> gate_up_e, down_e;
  for (int64_t e = 0; e < 3; ++e) {
    gate_up_e.push_back(Variable::Leaf(in[1].Select(e).AsMatrix()));
    down_e.push_back(Variable::Leaf(in[2].Select(e)));
  }
  RowCounts rows{c.offsets};
  Variable together = Experts(x, rows, gate_up, down, Variable());
  Variable apart = Experts(x, rows, gate_up_e, down_e, Variable());
  ExpectBitEqual(apart.data(), together.data());
  Backward({Root{together, dy}, Root{apart, dy}}, {});
  for (int64_t e = 0; e < 3; ++e) {
    size_t i = static_cast<size_t>(e);
    ExpectBitEqual(gate_up_e[i].grad().tensor(), gate_up.grad().tensor().Select(e).AsMatrix());
    ExpectBitEqual(down_e[i].grad().tensor(), down.grad().tensor().Select(e));
  }
}

// Gradients of some weights may be direct, of others travel on, of others not be wanted: each must
// come out as if it were alone, at every micro-batch.
TEST_F(OpsExpertsTest, LeavesMadeAndFrozenWeightsMix) {
  ExpertsCase c{{0, 3, 5, 8}, 5, 4};
  std::vector<Tensor> in = Inputs(c);
  Tensor dy = Guarded("dy", {8, 5});
  Expected expected = Reference(c, in, dy, false);
  auto leaf = [&](const Tensor& all, int64_t e) {
    return Variable::Leaf(WithPadding(all.Select(e).AsMatrix(), Padding::kNone));
  };
  std::vector<Variable> up = {leaf(in[1], 0), leaf(in[1], 1), leaf(in[1], 2)},
                        down = {leaf(in[2], 0), leaf(in[2], 1), leaf(in[2], 2)};
  up[2].set_requires_grad(false);
  down[1].set_requires_grad(false);
  for (int64_t m = 0; m < 2; ++m) {
    Variable y = Experts(Variable(in[0]), RowCounts{c.offsets}, {up[0], Scale(up[1], 1.0), up[2]},
                         {Scale(down[0], 1.0), down[1], down[2]}, Variable());
    Backward({Root{y, dy}}, {.micro_batch = m, .num_micro_batches = 2});
  }
  auto part = [](const Vec& all, int64_t e) {
    Vec values = reference::Row(all, e, static_cast<int64_t>(all.size()) / 3);
    for (double& value : values) value *= 2.0;
    return values;
  };
  for (int64_t e : {0, 1}) {
    ExpectClose(up[static_cast<size_t>(e)].grad().tensor(), part(expected.grads[1], e), kTolerance,
                absl::StrCat("gate_up ", e));
  }
  for (int64_t e : {0, 2}) {
    ExpectClose(down[static_cast<size_t>(e)].grad().tensor(), part(expected.grads[2], e),
                kTolerance, absl::StrCat("down ", e));
  }
  EXPECT_FALSE(up[2].grad().tensor().defined());
  EXPECT_FALSE(down[1].grad().tensor().defined());
}

TEST_F(OpsExpertsTest, PassTheGradientCheck) {
  ExpertsCase c{{0, 3, 3, 8}, 5, 4};
  std::vector<Tensor> in = Inputs(c);
  auto op = [&](absl::Span<const Variable> v) {
    return Experts(v[0], RowCounts{c.offsets}, v[1], v[2], v[3]);
  };
  EXPECT_EQ(CheckGradients(op, in), absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
