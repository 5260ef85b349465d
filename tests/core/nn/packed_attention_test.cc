// Packed documents do not see each other.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/autograd/engine.h"
#include "core/nn/attention.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/core/nn/small_attention.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

class PackedAttentionTest : public ::testing::Test {
 protected:
  ScopedTestContext context_;
};

// Output and gradient of x of `module` on a batch.
struct Outcome {
  Tensor y, dx;
};

Outcome RunOn(SelfAttention& module, const Tensor& x, const Tensor& dy,
              const std::vector<int32_t>& cu_seqlens) {
  for (Parameter* parameter : ParametersOf(module)) parameter->value.grad().Reset();
  Variable input = Variable::Leaf(x);
  StepContext step(RandomBatch(cu_seqlens), {});
  Variable y = module(input, step);
  Backward({Root{y, dy}}, {});
  return {y.data(), input.grad().tensor()};
}

// What happens in one document leaves no trace in another: not "almost none".
TEST_F(PackedAttentionTest, DocumentsDoNotSeeEachOther) {
  auto module = MakeRandom(SmallAttention());
  Tensor x = RandomTensor("x", {13, 10}), dy = RandomTensor("dy", {13, 10});
  Outcome before = RunOn(*module, x, dy, {0, 5, 13});
  for (int64_t c = 0; c < 10; ++c) {
    x.row<float>(2)[c] += 3.0f;
    dy.row<float>(4)[c] -= 2.0f;
  }
  Outcome after = RunOn(*module, x, dy, {0, 5, 13});
  ExpectBitEqual(after.y.Narrow(5, 8), before.y.Narrow(5, 8), "output");
  ExpectBitEqual(after.dx.Narrow(5, 8), before.dx.Narrow(5, 8), "gradient");
  ExpectBitEqual(after.y.Narrow(0, 2), before.y.Narrow(0, 2), "earlier positions");
  EXPECT_NE(ToVector<float>(after.y.Narrow(4, 1)), ToVector<float>(before.y.Narrow(4, 1)));
}

// The GEMMs around the core see other numbers of rows: bits may change with the kernel there.
TEST_F(PackedAttentionTest, PackedDocumentsEqualSeparateOnes) {
  for (int64_t window : {0, 3}) {
    SelfAttention::Options options = SmallAttention();
    options.attention.window = window;
    auto module = MakeRandom(options);
    Tensor x = RandomTensor("x", {13, 10}), dy = RandomTensor("dy", {13, 10});
    Outcome packed = RunOn(*module, x, dy, {0, 5, 13});
    Outcome first = RunOn(*module, x.Narrow(0, 5), dy.Narrow(0, 5), {0, 5});
    Outcome second = RunOn(*module, x.Narrow(5, 8), dy.Narrow(5, 8), {0, 8});
    ExpectClose(Plain(packed.y.Narrow(0, 5)), Plain(first.y), 1e-6, "first");
    ExpectClose(Plain(packed.y.Narrow(5, 8)), Plain(second.y), 1e-6, "second");
    ExpectClose(Plain(packed.dx.Narrow(0, 5)), Plain(first.dx), 1e-6, "first, gradient");
    ExpectClose(Plain(packed.dx.Narrow(5, 8)), Plain(second.dx), 1e-6, "second, gradient");
  }
}

// Every registered core keeps the bits of a document whatever stands beside it.
TEST_F(PackedAttentionTest, CoresGivePackedDocumentsTheBitsOfSeparateOnes) {
  AttentionOptions options{
      .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .value_dim = 8, .scale = 0.4};
  Tensor q = RandomTensor("q", {150, 4 * 8}), k = RandomTensor("k", {150, 2 * 8}),
         v = RandomTensor("v", {150, 2 * 8}), dout = RandomTensor("dout", {150, 4 * 8});
  for (const std::string& name : AttentionCoreRegistry().Names()) {
    std::unique_ptr<AttentionCore> core = (*AttentionCoreRegistry().Find(name))(options);
    auto run = [&](int64_t begin, int64_t count, const std::vector<int32_t>& cu_seqlens) {
      StepContext step(RandomBatch(cu_seqlens), {});
      std::vector<Variable> in = {Variable::Leaf(q.Narrow(begin, count)),
                                  Variable::Leaf(k.Narrow(begin, count)),
                                  Variable::Leaf(v.Narrow(begin, count))};
      Variable out = core->Compute(in[0], in[1], in[2], 0, step);
      Backward({Root{out, dout.Narrow(begin, count)}}, {});
      return std::vector<Tensor>{out.data(), in[0].grad().tensor(), in[1].grad().tensor(),
                                 in[2].grad().tensor()};
    };
    std::vector<Tensor> packed = run(0, 150, {0, 67, 150}), first = run(0, 67, {0, 67}),
                        second = run(67, 83, {0, 83});
    for (size_t i = 0; i < packed.size(); ++i) {
      ExpectBitEqual(packed[i].Narrow(0, 67), first[i], name + ", first");
      ExpectBitEqual(packed[i].Narrow(67, 83), second[i], name + ", second");
    }
  }
}

}  // namespace
}  // namespace meshfold::testing
