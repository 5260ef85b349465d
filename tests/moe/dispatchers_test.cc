// Every registered dispatcher on one rank.
#include <gmock/gmock.h>

#include "core/base/check.h"
#include "tests/moe/dispatcher_conformance.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Dispatcher> Make(const std::string& name, int64_t num_experts) {
  auto dispatcher = (*DispatcherRegistry().Find(name))({.num_experts = num_experts});
  EXPECT_TRUE(dispatcher.ok()) << dispatcher.status();
  return *std::move(dispatcher);
}

class DispatcherConformanceTest : public MoeTest,
                                  public ::testing::WithParamInterface<std::string> {};

TEST_P(DispatcherConformanceTest, MatchesTheSlowReferenceForwardAndBackward) {
  for (const DispatchCase& dispatch_case : DispatchCases(1)) {
    std::unique_ptr<Dispatcher> dispatcher = Make(GetParam(), dispatch_case.num_experts);
    CheckDispatcher(*dispatcher, dispatch_case, 0);
  }
}

TEST_P(DispatcherConformanceTest, KeepsMicroBatchesOnTheirWayApart) {
  std::vector<DispatchCase> cases;
  for (const DispatchCase& dispatch_case : DispatchCases(1)) {
    if (dispatch_case.num_experts == 4) cases.push_back(dispatch_case);
  }
  ASSERT_GT(cases.size(), 4u);
  std::unique_ptr<Dispatcher> dispatcher = Make(GetParam(), 4);
  for (size_t i = 0; i + 1 < cases.size(); ++i) {
    CheckTwoOnTheirWay(*dispatcher, cases[i], cases[i + 1], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, DispatcherConformanceTest,
                         ::testing::ValuesIn(DispatcherRegistry().Names()),
                         [](const auto& test) { return test.param; });

class LocalDispatcherTest : public MoeTest {};

TEST_F(LocalDispatcherTest, RefusesPlansOfSeveralRanks) {
  std::unique_ptr<Dispatcher> dispatcher = Make("local", 2);
  SortedTokens sorted =
      SortTokens(TensorFromVector<int32_t>({0, 1}, {2, 1}), Tensor(), /*num_experts=*/2);
  ExpertPlan plan = *(*PlannerRegistry().Find("static_ep"))({.counts_RE = {{1, 1}, {0, 0}}});
  try {
    dispatcher->DispatchStart({.x_TD = Variable(testing::MakeTensor({1, 2}, {2, 1})),
                               .weights_TK = Variable(testing::MakeTensor({1, 1}, {2, 1})),
                               .sorted = sorted,
                               .plan = plan});
    FAIL() << "accepted";
  } catch (const StatusError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'local' cannot serve a plan for 2 ranks"));
  }
}

}  // namespace
}  // namespace meshfold::moe
