// What ops say about bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/autograd/ops.h"
#include "tests/core/autograd/graph_testing.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

class OpErrorsTest : public ::testing::Test {
 protected:
  static Variable Zeros(const Shape& shape, DType dtype = DType::kF32) {
    return Variable(
        MakeTensor(std::vector<double>(static_cast<size_t>(shape.numel())), shape, dtype));
  }

  ScopedTestContext context_;
};

TEST_F(OpErrorsTest, Elementwise) {
  EXPECT_EQ(InvalidArgumentOf([] {
              Add(Zeros({2, 3}), Zeros({3, 2}));
            }),
            "[Add] shapes differ: [2, 3] and [3, 2]");
  EXPECT_EQ(InvalidArgumentOf([] {
              Multiply(Zeros({2}), Zeros({2, 1}));
            }),
            "[Multiply] shapes differ: [2] and [2, 1]");
  EXPECT_EQ(InvalidArgumentOf([] { Multiply(Zeros({2}), Zeros({2}, DType::kBF16)); }),
            "[Multiply] b must be f32, is bf16 [2]");
  EXPECT_EQ(InvalidArgumentOf([] { Clamp(Zeros({2}), 1.0, -1.0); }),
            "[Clamp] bounds [1, -1] are empty");
  EXPECT_EQ(InvalidArgumentOf([] {
              AddBias(Zeros({2, 3}), Zeros({2}));
            }),
            "[AddBias] bias has shape [2], wanted [3]");
  EXPECT_EQ(InvalidArgumentOf([] {
              SwiGlu(Zeros({2, 3}));
            }),
            "[SwiGlu] 3 columns are not gate and up halves");
  EXPECT_EQ(InvalidArgumentOf([] { Sigmoid(Zeros({2}, DType::kI32)); }),
            "[Sigmoid] x must be f32, is i32 [2]");
}

TEST_F(OpErrorsTest, NormAndMatmul) {
  EXPECT_EQ(InvalidArgumentOf([] {
              RmsNorm(Zeros({2, 6}), Zeros({6}), {.groups = 4});
            }),
            "[RmsNorm] weight [6] does not fit 4 groups of x [2, 6]");
  EXPECT_EQ(InvalidArgumentOf([] {
              AddRmsNorm(Zeros({2, 6}), Zeros({2, 5}), Zeros({6}), {});
            }),
            "[AddRmsNorm] shapes differ: [2, 6] and [2, 5]");
  EXPECT_EQ(InvalidArgumentOf([] {
              Linear(Zeros({2, 3}), Zeros({5, 4}));
            }),
            "[Linear] x [2, 3] and weight [5, 4] differ in the last dim");
  EXPECT_EQ(InvalidArgumentOf([] {
              Linear(Zeros({2, 3}), Zeros({5, 3}, DType::kI32));
            }),
            "[Linear] weight must be f32, bf16 or f16, is i32 [5, 3]");
}

TEST_F(OpErrorsTest, LinearCrossEntropy) {
  Variable x = Zeros({2, 3}), w = Zeros({4, 3});
  EXPECT_EQ(InvalidArgumentOf([&] {
              LinearCrossEntropy(x, w, MakeIds({0, 1, 2}, {3}), {.scale = 1.0});
            }),
            "[LinearCrossEntropy] x [2, 3], weight [4, 3], targets [3]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              LinearCrossEntropy(x, w, MakeIds({0, 4}, {2}), {.scale = 1.0});
            }),
            "[LinearCrossEntropy] target 4 at position 1 out of range [0, 4)");
}

TEST_F(OpErrorsTest, Experts) {
  Variable gate_up = Zeros({2, 2, 5, 3}), down = Zeros({2, 3, 5});
  auto experts = [&](const Variable& x, const RowCounts& rows, const Variable& up) {
    return InvalidArgumentOf([&] { Experts(x, rows, up, down, Variable()); });
  };
  EXPECT_EQ(experts(Zeros({4, 3}), {{0, 1, 3}}, gate_up),
            "[Experts] x has 4 rows, the counts sum to 3");
  EXPECT_EQ(
      experts(Zeros({4, 3}), {{0, 1, 2, 4}}, gate_up),
      "[Experts] 1 gate_up [2, 2, 5, 3] and 1 down [2, 3, 5] do not fit 3 groups of x [4, 3]");
  EXPECT_EQ(
      experts(Zeros({4, 3}), {{0, 1, 4}}, Zeros({2, 2, 4, 3})),
      "[Experts] 1 gate_up [2, 2, 4, 3] and 1 down [2, 3, 5] do not fit 2 groups of x [4, 3]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              Experts(Zeros({4, 3}), {{0, 1, 4}}, {Zeros({10, 3}), Zeros({10, 3})}, {Zeros({3, 5})},
                      Variable());
            }),
            "[Experts] 2 gate_up [10, 3] and 1 down [3, 5] do not fit 2 groups of x [4, 3]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              Experts(Zeros({4, 3}), {{0, 1, 4}}, gate_up, down, Zeros({3}));
            }),
            "[Experts] row_weights has shape [3], wanted [4]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              Experts(Zeros({0, 3}), {}, absl::Span<const Variable>(), absl::Span<const Variable>(),
                      Variable());
            }),
            "[Experts] no weights");
}

TEST_F(OpErrorsTest, Rope) {
  RopeTable table{MakeTensor({1, 1, 1, 1}, {2, 2}), MakeTensor({0, 0, 0, 0}, {2, 2})};
  EXPECT_EQ(InvalidArgumentOf([&] {
              Rope(Zeros({2, 6}), 2, MakeIds({0, 1}, {2}), table);
            }),
            "[Rope] 2 heads, cos [2, 2], sin [2, 2] (4 rotated dims) and 2 positions do not fit x "
            "[2, 6]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              Rope(Zeros({2, 8}), 2, MakeIds({0, 2}, {2}), table);
            }),
            "[Rope] position 2 at position 1 out of range [0, 2)");
}

TEST_F(OpErrorsTest, Attention) {
  AttentionOptions options{.num_heads = 2, .num_kv_heads = 1, .head_dim = 4, .value_dim = 3};
  auto attention = [&](int64_t q_rows, int64_t k_rows, std::vector<int32_t> cu_q,
                       std::vector<int32_t> cu_k, bool grad = false) {
    return InvalidArgumentOf([&] {
      Variable q = Zeros({q_rows, 8});
      q.set_requires_grad(grad);
      Attention(q, Zeros({k_rows, 4}), Zeros({k_rows, 3}), cu_q, cu_k, options);
    });
  };
  EXPECT_EQ(attention(3, 3, {0, 2}, {0, 3}),
            "[Attention] cu_seqlens_q must rise from 0 to the 3 rows, goes from 0 to 2");
  EXPECT_EQ(attention(3, 3, {0, 2, 1, 3}, {0, 3}),
            "[Attention] cu_seqlens_q falls from 2 to 1 at document 1");
  EXPECT_EQ(attention(3, 3, {0, 2, 3}, {0, 3}),
            "[Attention] 2 query documents and 1 key documents");
  EXPECT_EQ(attention(3, 3, {0, 2, 3}, {0, 1, 3}),
            "[Attention] document 0 has 2 queries and only 1 keys");
  EXPECT_EQ(attention(1, 3, {0, 1}, {0, 3}, /*grad=*/true),
            "[Attention] a gradient needs equal query and key lengths, 1 rows against 3");
  options.num_kv_heads = 3;
  EXPECT_EQ(attention(3, 3, {0, 3}, {0, 3}),
            "[Attention] q [3, 8], k [3, 4], v [3, 3] do not fit 2 heads, 3 KV heads, head_dim 4, "
            "value_dim 3, window 0");
}

TEST_F(OpErrorsTest, Rows) {
  EXPECT_EQ(InvalidArgumentOf([] {
              Embedding(Zeros({4, 2}), MakeIds({3, 0, 4}, {3}));
            }),
            "[Embedding] token id 4 at position 2 out of range [0, 4)");
  EXPECT_EQ(InvalidArgumentOf([] {
              Embedding(Zeros({4, 2}), MakeIds({-1}, {1}));
            }),
            "[Embedding] token id -1 at position 0 out of range [0, 4)");
  EXPECT_EQ(InvalidArgumentOf([] {
              Embedding(Zeros({4, 2}), MakeTensor({1}, {1}));
            }),
            "[Embedding] token id must be i32, is f32 [1]");
  RowIndex index{MakeIds({0, 3, 1}, {3}), MakeIds({0, 2, 1, -1}, {2, 2})};
  EXPECT_EQ(InvalidArgumentOf([&] {
              GatherTokenRows(Zeros({3, 2}), index);
            }),
            "[GatherTokenRows] 3 rows, the index has 2");
  EXPECT_EQ(InvalidArgumentOf([&] {
              CombineTokenRows(Zeros({2, 2}), index);
            }),
            "[CombineTokenRows] 2 rows, the index has 3");
  EXPECT_EQ(InvalidArgumentOf([&] {
              GatherRowWeights(Zeros({2, 3}), index);
            }),
            "[GatherRowWeights] weights has shape [2, 3], wanted [2, 2]");
  index.row_to_slot.data<int32_t>()[1] = 4;
  EXPECT_EQ(InvalidArgumentOf([&] {
              GatherTokenRows(Zeros({2, 2}), index);
            }),
            "[GatherTokenRows] slot 4 at position 1 out of range [0, 4)");
  EXPECT_EQ(InvalidArgumentOf([] {
              GatherCols(Zeros({2, 3}), MakeIds({0, 1, 2}, {3, 1}));
            }),
            "[GatherCols] scores [2, 3] and ids [3, 1] differ in rows");
  EXPECT_EQ(InvalidArgumentOf([] {
              GatherCols(Zeros({2, 3}), MakeIds({0, 3}, {2, 1}));
            }),
            "[GatherCols] column 3 at position 1 out of range [0, 3)");
}

TEST_F(OpErrorsTest, Losses) {
  Tensor valid = MakeTensor({1, 1, 0}, {3}, DType::kU8);
  EXPECT_EQ(InvalidArgumentOf([&] {
              WeightedSum(Zeros({2, 3}), Row({1, 2}), Tensor());
            }),
            "[WeightedSum] coefficients f32 [2] for x [2, 3]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              WeightedSum(Zeros({2, 3}), Row({1, 2, 3}), valid);
            }),
            "[WeightedSum] valid must be u8 [2], is u8 [3]");
  EXPECT_EQ(InvalidArgumentOf([&] {
              SquaredLogSumExp(Zeros({2, 3}), 1.0, valid);
            }),
            "[SquaredLogSumExp] valid must be u8 [2], is u8 [3]");
  EXPECT_EQ(InvalidArgumentOf([] { AttachLoss(Zeros({2}), Zeros({2})); }),
            "[AttachLoss] loss has shape [2], wanted [1]");
}

}  // namespace
}  // namespace meshfold::testing
