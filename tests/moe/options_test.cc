#include "moe/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace meshfold::moe {
namespace {

using ::testing::HasSubstr;

MoeOptions Good() {
  return {.hidden_size = 8,
          .num_experts = 8,
          .top_k = 3,
          .expert_size = 4,
          .num_groups = 4,
          .top_k_groups = 2};
}

std::string Fault(const MoeOptions& options) { return std::string(Validate(options).message()); }

TEST(MoeOptionsTest, AcceptsWhatFits) { EXPECT_TRUE(Validate(Good()).ok()); }

TEST(MoeOptionsTest, RefusesSizesThatDoNotFit) {
  MoeOptions options = Good();
  options.top_k = 9;
  EXPECT_THAT(Fault(options), HasSubstr("top_k 9 is more than the 8 experts"));
  options = Good();
  options.num_groups = 3;
  EXPECT_THAT(Fault(options), HasSubstr("8 experts do not divide into 3 groups"));
  options = Good();
  options.num_groups = 8;
  EXPECT_THAT(Fault(options), HasSubstr("8 groups of 8 experts"));
  options = Good();
  options.top_k = 5;
  EXPECT_THAT(Fault(options), HasSubstr("top_k 5 is more than the 4 experts of 2 groups"));
  options = Good();
  options.top_k_groups = 5;
  EXPECT_THAT(Fault(options), HasSubstr("top_k_groups 5 is more than the 4 groups"));
  options = Good();
  options.expert_size = 0;
  EXPECT_THAT(Fault(options), HasSubstr("expert_size is 0"));
  options = Good();
  options.num_shared_experts = -1;
  EXPECT_THAT(Fault(options), HasSubstr("num_shared_experts is -1"));
}

TEST(MoeOptionsTest, RefusesRatesThatAreNegativeOrNoNumber) {
  MoeOptions options = Good();
  options.aux_loss_coefficient = -0.1;
  EXPECT_THAT(Fault(options), HasSubstr("aux_loss_coefficient is -0.1"));
  options = Good();
  options.capacity_factor = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Fault(options), HasSubstr("capacity_factor is nan"));
}

}  // namespace
}  // namespace meshfold::moe
