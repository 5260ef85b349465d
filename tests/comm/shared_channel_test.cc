// Collectives through a window, by threads that each move one rank's end: what ThreadSanitizer can
// watch. The slow twin is a chain of additions.
#include "comm/shared_channel.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;

// Runs what `start` puts into each rank's channel, each rank in a thread, until all is over; the
// results by rank, in the order in which operations ended.
std::vector<std::vector<absl::Status>> RunRanks(
    const SharedWindowShape& shape,
    const std::function<void(int rank, const std::function<void(SharedOperation)>&)>& start) {
  const std::shared_ptr<SharedWindow> window = SharedWindow::Create(shape).value();
  std::vector<std::vector<absl::Status>> results(static_cast<size_t>(shape.num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      SharedChannel channel(window, rank);
      start(rank, [&](SharedOperation operation) {
        operation.done = [&results, rank](absl::Status status) {
          results[static_cast<size_t>(rank)].push_back(std::move(status));
        };
        channel.Start(std::move(operation));
      });
      while (!channel.idle()) {
        if (!channel.Advance()) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// Of rank `rank`: sums depend on the order of addition.
template <typename T>
std::vector<T> Values(int rank, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>((i % 2 == 0 ? 1e-3 : 3.3e4) * static_cast<double>(i % 97 + 1) *
                               (rank == 2 ? -1 : rank + 1));
  }
  return values;
}

template <typename T>
std::vector<T> Sum(int64_t count) {
  std::vector<T> sum = Values<T>(0, count);
  for (int rank = 1; rank < kRanks; ++rank) {
    const std::vector<T> part = Values<T>(rank, count);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

template <typename T>
SharedOperation Operation(SharedKind kind, const T* in, T* out, int64_t count) {
  SharedOperation operation;
  operation.kind = kind;
  operation.what = "Test";
  operation.dtype = DTypeOf<T>::value;
  operation.in = reinterpret_cast<const char*>(in);
  operation.out = reinterpret_cast<char*>(out);
  operation.bytes = count * static_cast<int64_t>(sizeof(T));
  return operation;
}

void ExpectAllOk(const std::vector<std::vector<absl::Status>>& results, size_t count) {
  for (const auto& of_rank : results) {
    EXPECT_EQ(of_rank.size(), count);
    for (const absl::Status& status : of_rank) EXPECT_TRUE(status.ok()) << status;
  }
}

// Counts below, at and above slots, lines and the window; all in flight at once.
template <typename T>
void CheckAllReduces(const SharedWindowShape& shape) {
  const std::vector<int64_t> counts = {0, 1, 15, 16, 17, 0, 333, 1000, 4096, 4097, 3, 20011, 1};
  const size_t num = counts.size();
  std::vector<std::vector<T>> apart(num * kRanks), in_place(num * kRanks), in(num * kRanks);
  const auto results = RunRanks(shape, [&](int rank, const auto& start) {
    for (size_t i = 0; i < num; ++i) {
      const size_t at = i * kRanks + static_cast<size_t>(rank);
      in[at] = in_place[at] = Values<T>(rank, counts[i]);
      apart[at].resize(in[at].size());
      start(Operation<T>(SharedKind::kAllReduce, in[at].data(), apart[at].data(), counts[i]));
      start(Operation<T>(SharedKind::kAllReduce, in_place[at].data(), in_place[at].data(),
                         counts[i]));
    }
  });
  ExpectAllOk(results, 2 * num);
  for (size_t i = 0; i < num * kRanks; ++i) {
    const std::vector<T> expected = Sum<T>(counts[i / kRanks]);
    EXPECT_EQ(apart[i], expected) << counts[i / kRanks];
    EXPECT_EQ(in_place[i], expected) << counts[i / kRanks] << " in place";
    EXPECT_EQ(in[i], Values<T>(static_cast<int>(i % kRanks), counts[i / kRanks]));
  }
}

TEST(SharedChannelTest, AllReduceEqualsTheChainOfAdditions) {
  for (const int64_t slot_bytes : {192, 1024, 64 * 1024}) {
    for (const int num_slots : {1, 2, 5}) {
      const SharedWindowShape shape{kRanks, num_slots, slot_bytes};
      CheckAllReduces<float>(shape);
      CheckAllReduces<int32_t>(shape);
      CheckAllReduces<int64_t>(shape);
    }
  }
}

TEST(SharedChannelTest, OtherCollectivesMoveWhatTheySay) {
  for (const int64_t count : {0, 1, 47, 48, 1000}) {
    const std::vector<float> sum = Sum<float>(count * kRanks);
    std::vector<std::vector<float>> whole(kRanks), part(kRanks), all(kRanks), data(kRanks);
    const auto results = RunRanks({kRanks, 2, 320}, [&](int rank, const auto& start) {
      const size_t r = static_cast<size_t>(rank);
      whole[r] = Values<float>(rank, count * kRanks);
      data[r] = Values<float>(rank, count);
      part[r].resize(static_cast<size_t>(count));
      all[r].resize(static_cast<size_t>(count * kRanks));
      start(Operation(SharedKind::kReduceScatter, whole[r].data(), part[r].data(), count));
      start(SharedOperation());
      start(Operation(SharedKind::kAllGather, data[r].data(), all[r].data(), count));
      SharedOperation broadcast =
          Operation(SharedKind::kBroadcast, data[r].data(), data[r].data(), count);
      broadcast.root = 1;
      start(std::move(broadcast));
    });
    ExpectAllOk(results, 4);
    for (int rank = 0; rank < kRanks; ++rank) {
      const size_t r = static_cast<size_t>(rank);
      const auto begin = sum.begin() + rank * count;
      EXPECT_EQ(part[r], std::vector<float>(begin, begin + count));
      EXPECT_EQ(data[r], Values<float>(1, count));
      for (int peer = 0; peer < kRanks; ++peer) {
        const auto of_peer = all[r].begin() + peer * count;
        EXPECT_EQ(std::vector<float>(of_peer, of_peer + count), Values<float>(peer, count));
      }
    }
  }
}

// The ranks cut the operation they disagree about into different numbers of chunks, between others.
TEST(SharedChannelTest, ADisagreementIsToldToAllAndLaterOperationsGoOn) {
  for (const int num_slots : {1, 2, 3, 8}) {
    std::vector<std::vector<float>> before(kRanks), bad(kRanks), after(kRanks);
    const auto results = RunRanks({kRanks, num_slots, 192}, [&](int rank, const auto& start) {
      const size_t r = static_cast<size_t>(rank);
      before[r] = after[r] = Values<float>(rank, 500);
      bad[r] = Values<float>(rank, rank == 1 ? 2000 : 100);
      start(Operation(SharedKind::kAllReduce, before[r].data(), before[r].data(), 500));
      start(Operation(SharedKind::kAllReduce, bad[r].data(), bad[r].data(),
                      static_cast<int64_t>(bad[r].size())));
      start(rank == 2 ? SharedOperation()
                      : Operation(SharedKind::kAllReduce, bad[r].data(), bad[r].data(), 0));
      start(Operation(SharedKind::kAllReduce, after[r].data(), after[r].data(), 500));
    });
    for (size_t r = 0; r < kRanks; ++r) {
      ASSERT_EQ(results[r].size(), 4u);
      EXPECT_TRUE(results[r][0].ok() && results[r][3].ok());
      EXPECT_EQ(results[r][1].code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(results[r][1].message()),
                  HasSubstr(r == 1 ? "[Test] has 8000 bytes of f32, rank 0 has 400 bytes of f32: "
                                     "ranks disagree about shapes"
                                   : "rank 1 has 8000 bytes of f32"));
      EXPECT_THAT(std::string(results[r][2].message()), HasSubstr("different operations"));
      EXPECT_EQ(before[r], Sum<float>(500));
      EXPECT_EQ(after[r], Sum<float>(500));
    }
  }
}

TEST(SharedChannelTest, FailEndsWhatIsInFlight) {
  const std::shared_ptr<SharedWindow> window =
      SharedWindow::Create({.num_ranks = 2, .num_slots = 2, .slot_bytes = 128}).value();
  SharedChannel channel(window, 0);
  std::vector<float> data(1000);
  std::vector<absl::Status> results;
  for (int i = 0; i < 3; ++i) {
    SharedOperation operation = Operation(SharedKind::kAllReduce, data.data(), data.data(), 1000);
    operation.done = [&](absl::Status status) { results.push_back(std::move(status)); };
    channel.Start(std::move(operation));
  }
  while (channel.Advance()) {
  }
  EXPECT_FALSE(channel.idle()) << "rank 1 never comes";
  channel.Fail(absl::AbortedError("gone"));
  EXPECT_TRUE(channel.idle());
  EXPECT_EQ(results, std::vector<absl::Status>(3, absl::AbortedError("gone")));
}

}  // namespace
}  // namespace meshfold::comm
