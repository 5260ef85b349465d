// Generation through a KV cache.
#include "core/nn/kv_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/nn/attention.h"
#include "tests/core/autograd/op_testing.h"
#include "tests/core/nn/nn_testing.h"
#include "tests/core/nn/small_attention.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::testing {
namespace {

class KvCacheTest : public ::testing::Test {
 protected:
  // The output for tokens [begin, end) of x with what the cache holds.
  static Tensor Step(SelfAttention& module, const Tensor& x, int64_t begin, int64_t end,
                     KvCache* cache) {
    std::vector<int32_t> tokens(static_cast<size_t>(end - begin)), positions;
    for (int64_t t = begin; t < end; ++t) positions.push_back(static_cast<int32_t>(t));
    PackedBatch batch = MakePackedBatch(tokens, {}, {0, static_cast<int32_t>(end - begin)});
    batch.positions = MakeIds(positions, {end - begin});
    StepContext step(batch, {.training = false, .kv_cache = cache});
    return module(Variable(x.Narrow(begin, end - begin)), step).data();
  }

  ScopedTestContext context_;
};

TEST_F(KvCacheTest, StepByStepEqualsTheFullForward) {
  for (int64_t window : {0, 4}) {
    SelfAttention::Options options = SmallAttention();
    options.attention.window = window;
    options.qk_norm = QkNormKind::kPerHead;
    options.layer = 1;
    auto module = MakeRandom(options);
    Tensor x = RandomTensor("x", {11, 10});
    ScopedGradMode no_grad(GradMode::kNoGrad);
    Tensor full = Step(*module, x, 0, 11, nullptr);
    KvCache cache(2, 11);
    // A prompt of 4, then 3 at once, then one by one.
    for (auto [begin, end] :
         std::vector<std::pair<int, int>>{{0, 4}, {4, 7}, {7, 8}, {8, 9}, {9, 10}, {10, 11}}) {
      ExpectClose(Plain(Step(*module, x, begin, end, &cache)),
                  Plain(full.Narrow(begin, end - begin)), 2e-6, "from " + std::to_string(begin));
      EXPECT_EQ(cache.length(1), end);
    }
    EXPECT_EQ(cache.length(0), 0);
  }
}

TEST_F(KvCacheTest, RefusesMoreThanItsCapacity) {
  auto module = MakeRandom(SmallAttention());
  Tensor x = RandomTensor("x", {6, 10});
  ScopedGradMode no_grad(GradMode::kNoGrad);
  KvCache cache(1, 5);
  EXPECT_EQ(cache.capacity(), 5);
  Step(*module, x, 0, 4, &cache);
  try {
    Step(*module, x, 4, 6, &cache);
    FAIL() << "nothing thrown";
  } catch (const StatusError& error) {
    EXPECT_EQ(error.status(), absl::OutOfRangeError("[KvCache] position 6 exceeds the cache's 5"));
  }
  EXPECT_EQ(cache.length(0), 4);
}

TEST_F(KvCacheTest, RefusesGradientsAndSeveralDocuments) {
  auto module = MakeRandom(SmallAttention());
  Tensor x = RandomTensor("x", {6, 10});
  KvCache cache(1, 6);
  EXPECT_EQ(InvalidArgumentOf([&] { Step(*module, x, 0, 4, &cache); }),
            "[Attention] a KV cache gives no gradient: generate under kNoGrad");
  ScopedGradMode no_grad(GradMode::kNoGrad);
  StepContext step(RandomBatch({0, 2, 6}), {.kv_cache = &cache});
  EXPECT_EQ(InvalidArgumentOf([&] { (*module)(Variable(x), step); }),
            "[Attention] a KV cache serves one document, the batch has 2");
}

}  // namespace
}  // namespace meshfold::testing
