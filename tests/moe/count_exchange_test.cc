// What ranks learn of each other's counts, and with how many operations.
#include "moe/count_exchange.h"

#include <gmock/gmock.h>

#include <functional>

#include "comm/thread_world.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "tests/moe/moe_test_util.h"

namespace meshfold::moe {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Group = std::shared_ptr<comm::Communicator>;

class CountExchangeTest : public MoeTest {
 protected:
  // Runs body on 4 ranks with their world and its halves: rank r has counts {r, 10 r}.
  struct Rank {
    Group world, half;
    std::vector<int64_t> counts() const { return {world->rank(), 10 * world->rank()}; }
    // Operations of both groups since the last call.
    int64_t Operations() {
      const int64_t now = world->sequence() + half->sequence();
      return now - std::exchange(before, now);
    }
    int64_t before = 0;
  };
  void OnRanks(const std::function<void(Rank& rank)>& body) {
    const absl::Status status = comm::RunThreadWorld(
        {.size = 4, .deadline = absl::Seconds(60)}, [&](comm::Communicator& end) -> absl::Status {
          Rank rank{.world = Group(&end, [](comm::Communicator*) {})};
          MF_ASSIGN_OR_RETURN(rank.half, end.Split(end.rank() / 2, 0, "half"));
          rank.Operations();
          body(rank);
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }
};

TEST_F(CountExchangeTest, GroupsAloneWhereNobodyAsksForMore) {
  OnRanks([](Rank& rank) {
    auto exchange = MakeGroupCountExchange({.expert = rank.half, .micro_batch = rank.world});
    const SharedCounts counts = exchange->Share(rank.counts());
    const int64_t first = rank.world->rank() / 2 * 2;
    EXPECT_THAT(counts.group_RE, ElementsAre(ElementsAre(first, 10 * first),
                                             ElementsAre(first + 1, 10 * first + 10)));
    EXPECT_THAT(counts.micro_batch_E, IsEmpty());
    EXPECT_THAT(counts.ranks_RE, IsEmpty());
    EXPECT_EQ(rank.Operations(), 1);
    EXPECT_THAT(exchange->SumOverRanks(rank.counts()), ElementsAre(6, 60));
  });
}

TEST_F(CountExchangeTest, SumsOverAllThatShareTheMicroBatch) {
  OnRanks([](Rank& rank) {
    auto exchange =
        MakeGroupCountExchange({.expert = rank.half, .micro_batch = rank.world, .sums = true});
    const SharedCounts counts = exchange->Share(rank.counts());
    EXPECT_EQ(counts.group_RE.size(), 2u);
    EXPECT_THAT(counts.micro_batch_E, ElementsAre(6, 60));
    EXPECT_EQ(rank.Operations(), 2);
  });
}

TEST_F(CountExchangeTest, OneOperationWhereBothGroupsAreTheSameRanks) {
  OnRanks([](Rank& rank) {
    auto exchange =
        MakeGroupCountExchange({.expert = rank.world, .micro_batch = rank.world, .sums = true});
    const SharedCounts counts = exchange->Share(rank.counts());
    EXPECT_EQ(counts.group_RE.size(), 4u);
    EXPECT_THAT(counts.micro_batch_E, ElementsAre(6, 60));
    EXPECT_EQ(rank.Operations(), 1);
  });
}

TEST_F(CountExchangeTest, AllRanksWhereThereIsACapacity) {
  OnRanks([](Rank& rank) {
    auto exchange = MakeGroupCountExchange(
        {.expert = rank.half, .micro_batch = rank.world, .sums = true, .ranks = true});
    const SharedCounts counts = exchange->Share(rank.counts());
    EXPECT_THAT(counts.ranks_RE, ElementsAre(ElementsAre(0, 0), ElementsAre(1, 10),
                                             ElementsAre(2, 20), ElementsAre(3, 30)));
    EXPECT_EQ(counts.rank, rank.world->rank());
    EXPECT_EQ(counts.group_begin, rank.world->rank() / 2 * 2);
    EXPECT_EQ(counts.group_RE[static_cast<size_t>(rank.half->rank())], rank.counts());
    EXPECT_THAT(counts.micro_batch_E, ElementsAre(6, 60));
    EXPECT_EQ(rank.Operations(), 1);
  });
}

TEST_F(CountExchangeTest, DataParallelRanksKeepTheirExperts) {
  OnRanks([](Rank& rank) {
    const SharedCounts counts = MakeDataCountExchange(rank.world)->Share(rank.counts());
    EXPECT_THAT(counts.group_RE, ElementsAre(rank.counts()));
    EXPECT_THAT(counts.micro_batch_E, ElementsAre(6, 60));
    EXPECT_EQ(rank.Operations(), 1);
  });
}

}  // namespace
}  // namespace meshfold::moe
