// Every registered dispatcher, on one rank and on groups of ranks as threads.
#include <gmock/gmock.h>

#include "comm/thread_world.h"
#include "core/base/check.h"
#include "tests/moe/dispatcher_conformance.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Dispatcher> Make(const std::string& name, const DispatcherOptions& options) {
  auto dispatcher = MakeDispatcher(name, options);
  EXPECT_TRUE(dispatcher.ok()) << dispatcher.status();
  return *std::move(dispatcher);
}

// Runs body(group) on every rank of a group.
void OnRanks(int size, const std::function<void(std::shared_ptr<comm::Communicator>)>& body) {
  const absl::Status status = comm::RunThreadWorld(
      {.size = size, .deadline = absl::Seconds(60)}, [&](comm::Communicator& end) {
        body(std::shared_ptr<comm::Communicator>(&end, [](comm::Communicator*) {}));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
}

class DispatcherConformanceTest : public MoeTest,
                                  public ::testing::WithParamInterface<std::string> {};

TEST_P(DispatcherConformanceTest, MatchesTheSlowReferenceForwardAndBackward) {
  for (const DispatchCase& dispatch_case : DispatchCases(1)) {
    std::unique_ptr<Dispatcher> dispatcher =
        Make(GetParam(), {.num_experts = dispatch_case.num_experts});
    CheckDispatcher(*dispatcher, dispatch_case, 0);
  }
}

// The cases whose layers have the same experts.
std::vector<DispatchCase> CasesOfFourExperts(int64_t num_ranks) {
  std::vector<DispatchCase> cases;
  for (const DispatchCase& dispatch_case : DispatchCases(num_ranks)) {
    if (dispatch_case.num_experts == 4) cases.push_back(dispatch_case);
  }
  return cases;
}

TEST_P(DispatcherConformanceTest, KeepsMicroBatchesOnTheirWayApart) {
  const std::vector<DispatchCase> cases = CasesOfFourExperts(1);
  ASSERT_GT(cases.size(), 4u);
  std::unique_ptr<Dispatcher> dispatcher = Make(GetParam(), {.num_experts = 4});
  for (size_t i = 0; i + 1 < cases.size(); ++i) {
    CheckTwoOnTheirWay(*dispatcher, cases[i], cases[i + 1], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, DispatcherConformanceTest,
                         ::testing::ValuesIn(DispatcherRegistry().Names()),
                         [](const auto& test) { return test.param; });

std::vector<std::string> ForGroups() {
  std::vector<std::string> names = DispatcherRegistry().Names();
  names.erase(std::remove(names.begin(), names.end(), "local"), names.end());
  return names;
}

struct GroupShape {
  int expert = 1, expert_tensor = 1;
  int size() const { return expert * expert_tensor; }
};

class GroupConformanceTest
    : public MoeTest,
      public ::testing::WithParamInterface<std::tuple<std::string, GroupShape>> {
 protected:
  std::unique_ptr<Dispatcher> MakeOn(std::shared_ptr<comm::Communicator> group,
                                     int64_t num_experts) {
    return Make(std::get<0>(GetParam()), {.num_experts = num_experts,
                                          .group = std::move(group),
                                          .expert_tensor = shape().expert_tensor});
  }
  const GroupShape& shape() const { return std::get<1>(GetParam()); }
};

TEST_P(GroupConformanceTest, MatchesTheSlowReferenceForwardAndBackward) {
  const std::vector<DispatchCase> cases = DispatchCases(shape().size());
  OnRanks(shape().size(), [&](const std::shared_ptr<comm::Communicator>& group) {
    for (const DispatchCase& dispatch_case : cases) {
      std::unique_ptr<Dispatcher> dispatcher = MakeOn(group, dispatch_case.num_experts);
      CheckDispatcher(*dispatcher, dispatch_case, group->rank());
    }
  });
}

TEST_P(GroupConformanceTest, KeepsMicroBatchesOnTheirWayApart) {
  const std::vector<DispatchCase> cases = CasesOfFourExperts(shape().size());
  OnRanks(shape().size(), [&](const std::shared_ptr<comm::Communicator>& group) {
    std::unique_ptr<Dispatcher> dispatcher = MakeOn(group, 4);
    for (size_t i = 0; i + 1 < cases.size(); ++i) {
      CheckTwoOnTheirWay(*dispatcher, cases[i], cases[i + 1], group->rank());
    }
  });
}

// A rank that left an operation out would leave the others waiting, and numbers apart.
TEST_P(GroupConformanceTest, EveryRankIssuesTheSameOperations) {
  const std::vector<DispatchCase> cases = DispatchCases(shape().size());
  std::vector<std::vector<int64_t>> issued(static_cast<size_t>(shape().size()));
  OnRanks(shape().size(), [&](const std::shared_ptr<comm::Communicator>& group) {
    for (const DispatchCase& dispatch_case : cases) {
      const int64_t before = group->sequence();
      CheckDispatcher(*MakeOn(group, dispatch_case.num_experts), dispatch_case, group->rank());
      issued[static_cast<size_t>(group->rank())].push_back(group->sequence() - before);
    }
  });
  for (const std::vector<int64_t>& counts : issued) {
    EXPECT_THAT(counts, ::testing::Each(issued[0][0])) << "the data changes what is issued";
  }
}

INSTANTIATE_TEST_SUITE_P(Registered, GroupConformanceTest,
                         ::testing::Combine(::testing::ValuesIn(ForGroups()),
                                            ::testing::Values(GroupShape{2, 1}, GroupShape{1, 2},
                                                              GroupShape{3, 1}, GroupShape{4, 1},
                                                              GroupShape{2, 2}, GroupShape{1, 4})),
                         [](const auto& test) {
                           const GroupShape& shape = std::get<1>(test.param);
                           return absl::StrCat(std::get<0>(test.param), "_ep", shape.expert, "_etp",
                                               shape.expert_tensor);
                         });

class DispatcherOptionsTest : public MoeTest {};

TEST_F(DispatcherOptionsTest, LocalRefusesPlansOfSeveralTargets) {
  std::unique_ptr<Dispatcher> dispatcher = Make("local", {.num_experts = 2});
  SortedTokens sorted =
      SortTokens(TensorFromVector<int32_t>({0, 1}, {2, 1}), Tensor(), /*num_experts=*/2);
  ExpertPlan plan =
      *(*PlannerRegistry().Find("static_ep"))({.counts_RE = {{1, 1}, {0, 0}}, .num_targets = 2});
  try {
    dispatcher->DispatchStart({.x_TD = Variable(testing::MakeTensor({1, 2}, {2, 1})),
                               .weights_TK = Variable(testing::MakeTensor({1, 1}, {2, 1})),
                               .sorted = sorted,
                               .plan = plan});
    FAIL() << "accepted";
  } catch (const StatusError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'local' cannot serve a plan for 2 targets"));
  }
}

TEST_F(DispatcherOptionsTest, AutoGoesByTheNumberOfRanks) {
  EXPECT_EQ(Make("auto", {.num_experts = 4})->num_targets(), 1);
  OnRanks(4, [](const std::shared_ptr<comm::Communicator>& group) {
    auto dispatcher = Make("auto", {.num_experts = 4, .group = group, .expert_tensor = 2});
    EXPECT_EQ(dispatcher->num_targets(), 2);
  });
}

TEST_F(DispatcherOptionsTest, RefusesGroupsThatItCannotServe) {
  OnRanks(4, [](const std::shared_ptr<comm::Communicator>& group) {
    DispatcherOptions options{.num_experts = 4, .group = group};
    EXPECT_THAT(std::string(MakeDispatcher("local", options).status().message()),
                HasSubstr("'local' serves one rank, the expert group has 4"));
    options.expert_tensor = 3;
    EXPECT_THAT(std::string(MakeDispatcher("auto", options).status().message()),
                HasSubstr("expert_tensor 3 does not divide the 4 ranks"));
  });
  EXPECT_THAT(std::string(MakeDispatcher("remote", {}).status().message()),
              HasSubstr("unknown dispatcher 'remote'"));
}

}  // namespace
}  // namespace meshfold::moe
