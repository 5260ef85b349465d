#include "comm/shared_plan.h"

#include <vector>

#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

const std::vector<int64_t> kSizes = {0, 4, 60, 64, 100, 1000, 4096, 32768, 32772, 100000, 1000004};

TEST(SharedPlanTest, ChunksAndPartsTileTheTensor) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t slot : {256, 1024, 65536}) {
      for (const int64_t bytes : kSizes) {
        const SharedPlan plan(SharedKind::kAllReduce, bytes, ranks, slot);
        EXPECT_EQ(plan.adds_whole(), bytes <= slot && bytes <= 32768);
        int64_t at = 0;
        for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk) {
          EXPECT_EQ(plan.Chunk(chunk).begin, at);
          EXPECT_LE(plan.Chunk(chunk).size(), slot);
          for (int rank = 0; rank < ranks; ++rank) {
            const ByteRange part = plan.Part(chunk, rank);
            EXPECT_EQ(part.begin, plan.adds_whole() ? 0 : at);
            EXPECT_TRUE(part.size() == 0 || part.begin % 64 == 0);
            at = part.end;
          }
          EXPECT_EQ(plan.Chunk(chunk).end, at);
        }
        EXPECT_EQ(at, bytes);
      }
    }
  }
}

// Adds up message by message.
TEST(SharedPlanTest, SentBytesAreThoseOfAMessageToEachReader) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t bytes : kSizes) {
      const SharedPlan plan(SharedKind::kAllReduce, bytes, ranks, 1024);
      int64_t all = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t sent = 0;
        for (int64_t chunk = 0; chunk < plan.num_chunks(); ++chunk) {
          for (int peer = 0; peer < ranks; ++peer) {
            if (peer == rank) continue;
            sent += plan.Part(chunk, peer).size();
            if (plan.gathers()) sent += plan.Part(chunk, rank).size();
          }
        }
        EXPECT_EQ(plan.SentBytes(rank, 0), sent) << bytes << " bytes, rank " << rank;
        all += sent;
      }
      EXPECT_EQ(all, bytes * (ranks - 1) * (plan.adds_whole() ? ranks : 2));
      EXPECT_EQ(SharedPlan(SharedKind::kAllGather, bytes, ranks, 1024).SentBytes(0, 0),
                bytes * (ranks - 1));
      EXPECT_EQ(SharedPlan(SharedKind::kBroadcast, bytes, ranks, 1024).SentBytes(1, 1),
                bytes * (ranks - 1));
      EXPECT_EQ(SharedPlan(SharedKind::kBroadcast, bytes, ranks, 1024).SentBytes(0, 1), 0);
    }
  }
}

}  // namespace
}  // namespace meshfold::comm
