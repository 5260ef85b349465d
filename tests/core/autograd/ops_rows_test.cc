// Ops that move rows and elements by index, against f64.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/autograd/engine.h"
#include "core/autograd/grad_check.h"
#include "core/autograd/ops.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/reference/norm_softmax.h"
#include "tests/reference/routing.h"
#include "tests/reference/rows.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

using Inputs = absl::Span<const Variable>;
using reference::Ids;
using reference::Vec;

constexpr double kRounding = 1e-6;

// One routing of `tokens` tokens to `top_k` of `experts` experts, tokens dropped or invalid as
// asked, as tables for the op and for the reference.
struct Routing {
  Routing(int64_t tokens, int64_t top_k, int64_t experts, int64_t capacity,
          const std::vector<int>& valid)
      : tokens(tokens), top_k(top_k) {
    Ids ids;
    for (int64_t t = 0; t < tokens; ++t) {
      Vec scores = F64(RandomTensor(absl::StrCat("scores", t), {experts}));
      Ids ranked = reference::Ranked(scores);
      ids.insert(ids.end(), ranked.begin(), ranked.begin() + top_k);
    }
    std::vector<int64_t> limits;
    if (capacity > 0) limits.assign(static_cast<size_t>(experts), capacity);
    sorted = reference::SortByExpert(ids, top_k, experts, limits, valid);
    int64_t rows = 0;
    for (int32_t count : sorted.counts) rows += count;
    sorted.row_to_slot.resize(static_cast<size_t>(rows));
    index.row_to_slot = MakeIds(sorted.row_to_slot, {rows});
    index.token_rows = MakeIds(sorted.token_rows, {tokens, top_k});
  }
  int64_t rows() const { return static_cast<int64_t>(sorted.row_to_slot.size()); }
  std::string what() const { return absl::StrCat(tokens, " tokens, ", rows(), " rows"); }

  int64_t tokens, top_k;
  reference::SortedRows sorted;
  RowIndex index;
};

class OpsRowsTest : public ::testing::Test {
 protected:
  std::vector<Routing> Routings() {
    std::vector<Routing> routings;
    routings.emplace_back(11, 3, 5, 0, std::vector<int>());
    routings.emplace_back(9, 2, 4, 3, std::vector<int>());
    routings.emplace_back(8, 1, 3, 0, std::vector<int>{1, 0, 1, 1, 0, 0, 1, 1});
    routings.emplace_back(4, 2, 2, 0, std::vector<int>{0, 0, 0, 0});
    routings.emplace_back(0, 2, 2, 0, std::vector<int>());
    return routings;
  }
  std::vector<int64_t> Cols() { return {1, 7, 256}; }

  ScopedTestContext context_;
};

TEST_F(OpsRowsTest, Embedding) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (int64_t cols : Cols()) {
      Ids ids = {3, 0, 3, 6, 3, 1, 0};
      Tensor table = Guarded("table", {7, cols}, dtype), dy = Guarded("dy", {7, cols});
      ExpectOp([&](const auto& in) { return Embedding(in[0], MakeIds(ids, {7})); }, {table}, dy,
               {reference::GatherRows(F64(table), cols, ids, 1),
                {reference::AddEmbeddingGradient(Vec(static_cast<size_t>(7 * cols)), cols, ids,
                                                 F64(dy))}},
               kRounding, absl::StrCat(cols, " columns, ", DTypeName(dtype)));
    }
  }
}

TEST_F(OpsRowsTest, EmbeddingOfNoTokensHasAZeroGradient) {
  Tensor table = Guarded("table", {3, 4});
  ExpectOp([](const auto& in) { return Embedding(in[0], MakeIds({}, {0})); }, {table},
           Guarded("dy", {0, 4}), {{}, {Vec(12, 0.0)}}, 0, "no tokens");
}

TEST_F(OpsRowsTest, GatherTokenRows) {
  for (const Routing& r : Routings()) {
    for (int64_t cols : Cols()) {
      Tensor x = Guarded("x", {r.tokens, cols}), dy = Guarded("dy", {r.rows(), cols});
      ExpectOp([&](const auto& in) { return GatherTokenRows(in[0], r.index); }, {x}, dy,
               {reference::GatherRows(F64(x), cols, r.sorted.row_to_slot, r.top_k),
                {reference::CombineRows(F64(dy), cols, r.sorted.token_rows, r.top_k)}},
               kRounding, r.what());
    }
  }
}

TEST_F(OpsRowsTest, CombineTokenRows) {
  for (const Routing& r : Routings()) {
    for (int64_t cols : Cols()) {
      Tensor y = Guarded("y", {r.rows(), cols}), dx = Guarded("dx", {r.tokens, cols});
      ExpectOp([&](const auto& in) { return CombineTokenRows(in[0], r.index); }, {y}, dx,
               {reference::CombineRows(F64(y), cols, r.sorted.token_rows, r.top_k),
                {reference::GatherRows(F64(dx), cols, r.sorted.row_to_slot, r.top_k)}},
               kRounding, r.what());
    }
  }
}

TEST_F(OpsRowsTest, GatherRowWeights) {
  for (const Routing& r : Routings()) {
    Tensor w = Guarded("w", {r.tokens, r.top_k}), dy = RandomTensor("dy", {r.rows()});
    ExpectOp([&](const auto& in) { return GatherRowWeights(in[0], r.index); }, {w}, dy,
             {reference::GatherElements(F64(w), r.sorted.row_to_slot),
              {reference::ScatterElements(F64(dy), r.sorted.row_to_slot, r.tokens * r.top_k)}},
             0, r.what());
  }
}

TEST_F(OpsRowsTest, GatherCols) {
  Ids ids = {4, 0, 1, 2, 2, 3, 0, 4, 3};
  Tensor scores = Guarded("scores", {3, 5}), dy = Guarded("dy", {3, 3});
  ExpectOp(
      [&](const auto& in) {
        return GatherCols(in[0], MakeIds(ids, {3, 3}));
      },
      {scores}, dy,
      {reference::GatherCols(F64(scores), 5, ids, 3),
       {reference::GatherColsBackward(F64(dy), 5, ids, 3)}},
      kRounding, "3 of 5");
}

TEST_F(OpsRowsTest, NormalizeRows) {
  for (const Shape& shape : MatrixShapes()) {
    if (shape.cols() > 256) continue;
    Tensor w = RandomTensor("w", shape, {.mean = 3, .stddev = 0.5, .padding = Padding::kGuarded});
    Tensor dy = Guarded("dy", shape);
    ExpectOp([](const auto& in) { return NormalizeRows(in[0], 0.25, 2.5); }, {w}, dy,
             {reference::NormalizeRows(F64(w), shape.cols(), 0.25, 2.5),
              {reference::NormalizeRowsBackward(F64(w), shape.cols(), 0.25, 2.5, F64(dy))}},
             4e-6, shape.ToString());
  }
}

TEST_F(OpsRowsTest, WeightedSumAndSquaredLogSumExp) {
  std::vector<int> valid = {1, 0, 1, 1, 0}, all(5, 1);
  Tensor x = Guarded("x", {5, 6}), c = RandomTensor("c", {6}), dy = MakeTensor({-1.5}, {1});
  for (const std::vector<int>& v : {valid, all}) {
    Tensor mask = v == all ? Tensor() : MakeTensor(Vec(v.begin(), v.end()), {5}, DType::kU8);
    Vec dx;
    for (size_t i = 0; i < 30; ++i) dx.push_back(v[i / 6] ? -1.5 * F64(c)[i % 6] : 0.0);
    ExpectOp([&](const auto& in) { return WeightedSum(in[0], c, mask); }, {x}, dy,
             {{reference::WeightedSum(F64(x), F64(c), v)}, {dx}}, kRounding, "weighted sum");
    Vec dz = reference::SquaredLogSumExpBackward(F64(x), 6, v);
    for (double& value : dz) value *= -1.5 * 0.3;
    ExpectOp([&](const auto& in) { return SquaredLogSumExp(in[0], 0.3, mask); }, {x}, dy,
             {{0.3 * reference::SquaredLogSumExp(F64(x), 6, v)}, {dz}}, 3e-6, "z loss");
  }
}

TEST_F(OpsRowsTest, AttachLossInjectsOne) {
  Variable x = Variable::Leaf(RandomTensor("x", {3, 2})), z = Variable::Leaf(MakeTensor({4}, {1}));
  Variable y = AttachLoss(x, Scale(z, 0.5));
  ExpectBitEqual(y.data(), x.data());
  Tensor dy = RandomTensor("dy", {3, 2});
  Backward({Root{Scale(y, 0.0), dy}}, {});
  ExpectClose(x.grad().tensor(), Vec(6, 0.0), 0);
  ExpectClose(z.grad().tensor(), Vec{0.5}, 0);
}

TEST_F(OpsRowsTest, AttachLossToAConstantStillInjects) {
  Variable x(RandomTensor("x", {3, 2})), z = Variable::Leaf(MakeTensor({4}, {1}));
  Variable y = AttachLoss(x, z);
  EXPECT_TRUE(y.requires_grad());
  Backward({Root{y, RandomTensor("dy", {3, 2})}}, {});
  ExpectClose(z.grad().tensor(), Vec{1.0}, 0);
  EXPECT_EQ(AttachLoss(x, Variable(MakeTensor({4}, {1}))).state(), x.state());
}

TEST_F(OpsRowsTest, PassTheGradientCheck) {
  Routing r(6, 2, 3, 3, {});
  Tensor x = RandomTensor("x", {6, 4}), w = RandomTensor("w", {6, 2}, {.mean = 2, .stddev = 0.3});
  EXPECT_EQ(CheckGradients([&](Inputs in) { return GatherTokenRows(in[0], r.index); }, {x}),
            absl::OkStatus());
  EXPECT_EQ(CheckGradients([&](Inputs in) { return GatherRowWeights(in[0], r.index); }, {w}),
            absl::OkStatus());
  EXPECT_EQ(CheckGradients([](Inputs in) { return NormalizeRows(in[0], 0.1, 2.0); }, {w}),
            absl::OkStatus());
  EXPECT_EQ(CheckGradients([](Inputs in) { return SquaredLogSumExp(in[0], 0.5, Tensor()); }, {x}),
            absl::OkStatus());
}

}  // namespace
}  // namespace meshfold::testing
