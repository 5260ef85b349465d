// FLOP counts against sums done by hand.
#include "train/flops.h"

#include "gtest/gtest.h"

namespace meshfold::train {
namespace {

models::ModelConfig SmallConfig() {
  models::ModelConfig config;
  config.vocab_size = 100;
  config.hidden_size = 8;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 3;
  config.intermediate_size = 20;
  return config;
}

models::ModelConfig SmallMoe(int64_t top_k, int64_t num_experts) {
  models::ModelConfig config = SmallConfig();
  config.moe.num_experts = num_experts;
  config.moe.top_k = top_k;
  config.moe.expert_size = 5;
  return config;
}

// q and o are 8 x 12, k and v 8 x 6: 288 weights a layer. The MLP has three of 8 x 20, the head is
// 8 x 100. Each weight is one multiplication and one addition.
TEST(FlopsTest, DenseModel) {
  EXPECT_EQ(MatrixFlopsPerToken(SmallConfig()), 2 * (2 * (288 + 480) + 800));
  EXPECT_EQ(RoutedExpertFlopsPerToken(SmallConfig()), 0);
}

// Three of 8 x 5 an expert; the router has a row of 8 for every expert.
TEST(FlopsTest, ExpertsCountByTopK) {
  EXPECT_EQ(MatrixFlopsPerToken(SmallMoe(2, 4)), 2 * (2 * (288 + 8 * 4 + 2 * 120) + 800));
  double two_of_four = RoutedExpertFlopsPerToken(SmallMoe(2, 4));
  EXPECT_EQ(two_of_four, 2 * 2 * 2 * 120);
  EXPECT_EQ(RoutedExpertFlopsPerToken(SmallMoe(2, 8)), two_of_four);
  EXPECT_EQ(RoutedExpertFlopsPerToken(SmallMoe(4, 8)), 2 * two_of_four);
}

TEST(FlopsTest, SharedExpertsAndDenseLayers) {
  models::ModelConfig config = SmallMoe(2, 4);
  config.moe.num_shared_experts = 3;
  config.layer_is_moe = {false, true};
  EXPECT_EQ(MatrixFlopsPerToken(config), 2 * (2 * 288 + 480 + 8 * 4 + (2 + 3) * 120 + 800));
  EXPECT_EQ(RoutedExpertFlopsPerToken(config), 2 * 2 * 120);
}

// Documents of 3 and 2 tokens see 1 + 2 + 3 and 1 + 2 pairs. A pair costs a product of 3 with the
// query and one with the value in each of 4 heads and 2 layers: 2 * 2 * 3 * 4 * 2 = 96.
TEST(FlopsTest, AttentionCountsTheCausalPairsOfEachDocument) {
  EXPECT_EQ(AttentionFlops(SmallConfig(), {0, 3, 5}), 96 * (6 + 3));
  EXPECT_EQ(AttentionFlops(SmallConfig(), {0, 5}), 96 * 15);
  EXPECT_EQ(AttentionFlops(SmallConfig(), {}), 0);
}

// With a window of 2, a query sees itself and one more: 1 + 2 + 2 + 2 + 2.
TEST(FlopsTest, AttentionSeesNoFurtherThanItsWindow) {
  models::ModelConfig config = SmallConfig();
  config.sliding_window = 2;
  EXPECT_EQ(AttentionFlops(config, {0, 5}), 96 * 9);
  EXPECT_EQ(AttentionFlops(config, {0, 1, 3}), 96 * (1 + 3));
}

TEST(FlopsTest, TrainingIsThreeTimesTheForward) {
  models::ModelConfig config = SmallMoe(2, 4);
  EXPECT_EQ(TrainingFlops(config, {0, 3, 5}),
            3 * (5 * MatrixFlopsPerToken(config) + AttentionFlops(config, {0, 3, 5})));
}

// Two sequences of 4, the first with one position of padding, the second with three.
TEST(FlopsTest, PaddingIsNoWork) {
  models::ModelConfig config = SmallMoe(2, 4);
  EXPECT_EQ(TrainingFlops(config, {0, 3, 4, 5, 8}, {0, 0, 0, 1, 0, 1, 1, 1}),
            TrainingFlops(config, {0, 3, 4}));
}

}  // namespace
}  // namespace meshfold::train
