// What every Communicator must do. A test binary includes this header once, registers its worlds,
//
//   MF_REGISTER(WorldRegistry(), "self", {.sizes = {1}, .run = RunSelf});
//
// and gets every case for every world and number of ranks. Cases use the communicator alone, so
// they hold for ranks that are threads, processes or machines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/communicator.h"
#include "core/base/registry.h"
#include "core/tensor/allocator.h"
#include "core/tensor/tensor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {

using RankBody = std::function<void(Communicator&)>;

struct WorldFactory {
  std::vector<int> sizes;  // numbers of ranks to try
  // Makes a fresh world of `size` ranks, runs `body` once per rank at the same time, each with its
  // own communicator named "world", and returns when all have. In a world of processes, runs it on
  // this process's rank.
  std::function<void(int size, const RankBody& body)> run;
};

inline Registry<WorldFactory>& WorldRegistry() {
  static auto* registry = new Registry<WorldFactory>("communicator world");
  return *registry;
}

// Long for a correct world on a busy machine, short for one that hangs.
inline constexpr absl::Duration kPatience = absl::Seconds(60);

inline Tensor Empty(const Shape& shape, DType dtype = DType::kF32) {
  return Tensor::Contiguous(shape, dtype, SystemHostAllocator());
}

// The first `n` values of rank `rank`: whole numbers, different on every rank and index.
template <typename T = float>
std::vector<T> Values(int rank, int64_t n) {
  std::vector<T> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    values[static_cast<size_t>(i)] = static_cast<T>(1000 * (rank + 1) + i % 997);
  }
  return values;
}

template <typename T>
Tensor Filled(const std::vector<T>& values) {
  Tensor tensor = Empty({static_cast<int64_t>(values.size())}, DTypeOf<T>::value);
  std::copy(values.begin(), values.end(), tensor.data<T>());
  return tensor;
}

template <typename T = float>
std::vector<T> Read(const Tensor& tensor) {
  return std::vector<T>(tensor.data<T>(), tensor.data<T>() + tensor.numel());
}

// Waits for an operation that must succeed.
inline void Wait(absl::StatusOr<std::unique_ptr<Work>> work) {
  ASSERT_TRUE(work.ok()) << work.status();
  const absl::Status status = (*work)->HostWait(kPatience);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE((*work)->Done());
}

inline void ExpectRefused(const absl::StatusOr<std::unique_ptr<Work>>& work,
                          const std::string& message) {
  ASSERT_FALSE(work.ok());
  EXPECT_EQ(work.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(work.status().message()), ::testing::HasSubstr(message));
}

struct ConformanceCase {
  std::string world;
  int size;
};

class CommunicatorConformance : public ::testing::TestWithParam<ConformanceCase> {
 protected:
  void RunRanks(const RankBody& body) {
    WorldRegistry().Find(GetParam().world).value().run(GetParam().size, body);
  }
};

inline std::vector<ConformanceCase> ConformanceCases() {
  std::vector<ConformanceCase> cases;
  for (const std::string& world : WorldRegistry().Names()) {
    const WorldFactory factory = WorldRegistry().Find(world).value();
    for (int size : factory.sizes) cases.push_back({world, size});
  }
  return cases;
}

inline std::string ConformanceName(const ::testing::TestParamInfo<ConformanceCase>& info) {
  return absl::StrCat(info.param.world, "_", info.param.size, "_ranks");
}

// Registration happens before main, the expansion of these cases in main: order is safe.
INSTANTIATE_TEST_SUITE_P(Worlds, CommunicatorConformance, ::testing::ValuesIn(ConformanceCases()),
                         ConformanceName);

TEST_P(CommunicatorConformance, KnowsItsRankAndSize) {
  RunRanks([&](Communicator& world) {
    EXPECT_EQ(world.size(), GetParam().size);
    EXPECT_GE(world.rank(), 0);
    EXPECT_LT(world.rank(), world.size());
    EXPECT_EQ(world.name(), "world");
    Tensor sum = Filled<int64_t>({int64_t{1} << world.rank()});
    Wait(world.AllReduce(sum, sum));
    EXPECT_EQ(Read<int64_t>(sum)[0], (int64_t{1} << world.size()) - 1) << "a rank is there twice";
  });
}

template <typename T>
void CheckAllReduce(Communicator& world, int64_t n) {
  std::vector<T> expected(static_cast<size_t>(n), T{0});
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::vector<T> part = Values<T>(rank, n);
    for (size_t i = 0; i < part.size(); ++i) expected[i] += part[i];
  }
  const Tensor in = Filled(Values<T>(world.rank(), n)), out = Empty({n}, DTypeOf<T>::value);
  Wait(world.AllReduce(in, out));
  EXPECT_EQ(Read<T>(out), expected);
  EXPECT_EQ(Read<T>(in), Values<T>(world.rank(), n)) << "the input was changed";
  Wait(world.AllReduce(in, in));
  EXPECT_EQ(Read<T>(in), expected) << "in place";
}

TEST_P(CommunicatorConformance, AllReduceSums) {
  RunRanks([](Communicator& world) {
    for (int64_t n : {0, 1, 3, 1024, 5000}) {
      CheckAllReduce<float>(world, n);
      CheckAllReduce<int32_t>(world, n);
      CheckAllReduce<int64_t>(world, n);
    }
  });
}

// Values whose f32 sum depends on the order of addition.
inline std::vector<float> Touchy(int rank, int64_t n) {
  std::vector<float> values = Values(rank, n);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = (static_cast<size_t>(rank) + i) % 2 == 0 ? values[i] * 1e-3f : values[i] * 3.3e4f;
    if (rank % 3 == 2) values[i] = -values[i];
  }
  return values;
}

inline std::vector<float> AscendingSum(int size, int64_t n) {
  std::vector<float> sum = Touchy(0, n);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> part = Touchy(rank, n);
    for (size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

TEST_P(CommunicatorConformance, SumsAddInAscendingRankWhereverTheTensorIsCut) {
  RunRanks([](Communicator& world) {
    const int64_t part = 37, n = part * world.size();
    const std::vector<float> expected = AscendingSum(world.size(), n);
    const Tensor in = Filled(Touchy(world.rank(), n)), all = Empty({n}), own = Empty({part});
    Wait(world.AllReduce(in, all));
    EXPECT_EQ(Read(all), expected);
    Wait(world.ReduceScatter(in, own));
    const auto begin = expected.begin() + world.rank() * part;
    EXPECT_EQ(Read(own), std::vector<float>(begin, begin + part));
    const Tensor piece = Empty({5});
    Wait(world.AllReduce(in.Narrow(n - 9, 5), piece));
    EXPECT_EQ(Read(piece), std::vector<float>(expected.end() - 9, expected.end() - 4));
  });
}

TEST_P(CommunicatorConformance, AllGatherKeepsTheOrderOfRanks) {
  RunRanks([](Communicator& world) {
    for (int64_t n : {0, 1, 3, 1024}) {
      std::vector<float> expected;
      for (int rank = 0; rank < world.size(); ++rank) {
        const std::vector<float> part = Values(rank, n);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      const Tensor in = Filled(Values(world.rank(), n)), out = Empty({n * world.size()});
      Wait(world.AllGather(in, out));
      EXPECT_EQ(Read(out), expected);

      const Tensor whole = Empty({n * world.size()});
      const Tensor own = whole.Narrow(world.rank() * n, n);
      std::copy(in.data<float>(), in.data<float>() + n, own.data<float>());
      Wait(world.AllGather(own, whole));
      EXPECT_EQ(Read(whole), expected) << "in place";
    }
  });
}

TEST_P(CommunicatorConformance, AllGatherTakesEveryDtype) {
  RunRanks([](Communicator& world) {
    for (DType dtype : {DType::kBF16, DType::kF16, DType::kI64, DType::kU8}) {
      const Tensor in = Empty({5}, dtype), out = Empty({5 * world.size()}, dtype);
      const size_t bytes = static_cast<size_t>(in.nbytes());
      std::fill_n(static_cast<uint8_t*>(in.raw()), bytes, static_cast<uint8_t>(world.rank() + 1));
      Wait(world.AllGather(in, out));
      for (int rank = 0; rank < world.size(); ++rank) {
        const uint8_t* part = static_cast<uint8_t*>(out.raw()) + static_cast<size_t>(rank) * bytes;
        EXPECT_EQ(std::vector<uint8_t>(part, part + bytes),
                  std::vector<uint8_t>(bytes, static_cast<uint8_t>(rank + 1)));
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReduceScatterGivesEachRankItsPart) {
  RunRanks([](Communicator& world) {
    for (int64_t n : {0, 1, 3, 1024}) {
      const int64_t total = n * world.size();
      std::vector<float> sum(static_cast<size_t>(total), 0.0f);
      for (int rank = 0; rank < world.size(); ++rank) {
        const std::vector<float> part = Values(rank, total);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
      }
      const auto begin = sum.begin() + world.rank() * n;
      const std::vector<float> expected(begin, begin + n);
      const Tensor in = Filled(Values(world.rank(), total)), out = Empty({n});
      Wait(world.ReduceScatter(in, out));
      EXPECT_EQ(Read(out), expected);
      EXPECT_EQ(Read(in), Values(world.rank(), total)) << "the input was changed";
      const Tensor own = in.Narrow(world.rank() * n, n);
      Wait(world.ReduceScatter(in, own));
      EXPECT_EQ(Read(own), expected) << "in place";
    }
  });
}

// Rows from rank a to rank b: uneven, with zeros; `idle` sends and gets nothing.
inline int64_t RowsBetween(int a, int b, int idle) {
  return a == idle || b == idle ? 0 : (3 * a + 5 * b + 1) % 4;
}

TEST_P(CommunicatorConformance, AllToAllVDeliversUnevenRows) {
  RunRanks([](Communicator& world) {
    const int64_t width = 3;
    for (int idle = -1; idle < world.size(); ++idle) {
      std::vector<int64_t> in_rows, out_rows;
      std::vector<float> sent, expected;
      for (int peer = 0; peer < world.size(); ++peer) {
        in_rows.push_back(RowsBetween(world.rank(), peer, idle));
        out_rows.push_back(RowsBetween(peer, world.rank(), idle));
        for (int64_t i = 0; i < in_rows.back() * width; ++i) {
          sent.push_back(static_cast<float>(world.rank() * 10000 + peer * 100 + i));
        }
        for (int64_t i = 0; i < out_rows.back() * width; ++i) {
          expected.push_back(static_cast<float>(peer * 10000 + world.rank() * 100 + i));
        }
      }
      const int64_t num_in = static_cast<int64_t>(sent.size()) / width;
      const int64_t num_out = static_cast<int64_t>(expected.size()) / width;
      const Tensor in = Filled(sent).Reshape({num_in, width}), out = Empty({num_out, width});
      Wait(world.AllToAllV(in, in_rows, out, out_rows));
      EXPECT_EQ(Read(out), expected) << "idle rank " << idle;
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastsFromEveryRoot) {
  RunRanks([](Communicator& world) {
    for (int root = 0; root < world.size(); ++root) {
      for (int64_t n : {0, 1, 4097}) {
        const Tensor data = Filled(Values<int32_t>(world.rank(), n));
        Wait(world.Broadcast(data, root));
        EXPECT_EQ(Read<int32_t>(data), Values<int32_t>(root, n));
      }
    }
  });
}

TEST_P(CommunicatorConformance, MessagesBetweenTwoRanksKeepTheirOrder) {
  RunRanks([](Communicator& world) {
    if (world.size() == 1) return;
    const int next = (world.rank() + 1) % world.size();
    const int previous = (world.rank() + world.size() - 1) % world.size();
    const std::vector<int64_t> lengths = {7, 1, 0, 3000, 2};
    std::vector<std::unique_ptr<Work>> sends, receives;
    std::vector<Tensor> received;
    for (int64_t n : lengths) {
      sends.push_back(world.Send(Filled(Values(world.rank(), n)), next).value());
      received.push_back(Empty({n}));
      receives.push_back(world.Recv(received.back(), previous).value());
    }
    for (size_t i = lengths.size(); i-- > 0;) Wait(std::move(receives[i]));
    for (auto& send : sends) Wait(std::move(send));
    for (size_t i = 0; i < lengths.size(); ++i) {
      EXPECT_EQ(Read(received[i]), Values(previous, lengths[i]));
    }
  });
}

TEST_P(CommunicatorConformance, ManyOperationsMayBeInFlight) {
  RunRanks([](Communicator& world) {
    std::vector<std::unique_ptr<Work>> works;
    std::vector<Tensor> sums;
    for (int64_t i = 0; i < 20; ++i) {
      sums.push_back(Filled(Values<int64_t>(world.rank(), 10 + i)));
      works.push_back(world.AllReduce(sums.back(), sums.back()).value());
      if (i % 5 == 0) works.push_back(world.Barrier().value());
    }
    while (!works.empty()) {
      Wait(std::move(works.back()));
      works.pop_back();
    }
    for (const Tensor& sum : sums) {
      EXPECT_EQ(Read<int64_t>(sum)[0], 500 * world.size() * (world.size() + 1));
    }
  });
}

TEST_P(CommunicatorConformance, WaitingTwiceGivesTheSameResult) {
  RunRanks([](Communicator& world) {
    std::unique_ptr<Work> work = world.Barrier().value();
    EXPECT_TRUE(work->HostWait(kPatience).ok());
    EXPECT_TRUE(work->HostWait(kPatience).ok());
    EXPECT_TRUE(work->HostWait(absl::ZeroDuration()).ok());
  });
}

TEST_P(CommunicatorConformance, SplitOrdersByKeyAndSeparatesColors) {
  RunRanks([](Communicator& world) {
    const int color = world.rank() % 2;
    auto half = world.Split(color, -world.rank(), "half");
    ASSERT_TRUE(half.ok()) << half.status();
    const int members = (world.size() + 1 - color) / 2;
    EXPECT_EQ((*half)->size(), members);
    EXPECT_EQ((*half)->rank(), members - 1 - world.rank() / 2) << "keys fall with the rank";
    EXPECT_EQ((*half)->name(), "half");
    const Tensor sum = Filled<int64_t>({world.rank()});
    Wait((*half)->AllReduce(sum, sum));
    EXPECT_EQ(Read<int64_t>(sum)[0], members * (members - 1) + color * members);

    const Tensor order = Empty({members}, DType::kI64);
    Wait((*half)->AllGather(Filled<int64_t>({world.rank()}), order));
    EXPECT_EQ(Read<int64_t>(order)[0], 2 * (members - 1) + color);
  });
}

TEST_P(CommunicatorConformance, SplitLeavesOutNegativeColors) {
  RunRanks([](Communicator& world) {
    auto first = world.Split(world.rank() == 0 ? 0 : -1, 0, "first");
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(*first != nullptr, world.rank() == 0);
    if (*first != nullptr) {
      EXPECT_EQ((*first)->size(), 1);
    }
    auto copy = world.Split(7, world.rank(), "copy");
    ASSERT_TRUE(copy.ok()) << copy.status();
    EXPECT_EQ((*copy)->rank(), world.rank());
    // Groups do not disturb each other.
    const Tensor a = Filled<int64_t>({1}), b = Filled<int64_t>({10});
    auto in_copy = (*copy)->AllReduce(a, a);
    auto in_world = world.AllReduce(b, b);
    Wait(std::move(in_world));
    Wait(std::move(in_copy));
    EXPECT_EQ(Read<int64_t>(a)[0], world.size());
    EXPECT_EQ(Read<int64_t>(b)[0], 10 * world.size());
  });
}

// Ranks form a grid of two columns; operations of rows, columns and the world are in flight at once
// and are waited on in an order that differs from rank to rank.
TEST_P(CommunicatorConformance, GroupsOverlapInTime) {
  RunRanks([](Communicator& world) {
    const auto row = world.Split(world.rank() / 2, world.rank(), "row").value();
    const auto column = world.Split(world.rank() % 2, world.rank(), "column").value();
    const std::vector<Communicator*> groups = {&world, row.get(), column.get()};
    std::vector<std::unique_ptr<Work>> works;
    std::vector<Tensor> sums;
    std::vector<int64_t> expected;
    for (int64_t i = 0; i < 30; ++i) {
      Communicator& group = *groups[static_cast<size_t>(i % 3)];
      sums.push_back(Filled<int64_t>({i, group.rank()}));
      expected.push_back(i * group.size());
      works.push_back(group.AllReduce(sums.back(), sums.back()).value());
    }
    for (size_t i = 0; i < works.size(); ++i) {
      const size_t shift = static_cast<size_t>(world.rank()) * 7;
      Wait(std::move(works[(i * 11 + shift) % works.size()]));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      const int64_t size = groups[i % 3]->size();
      EXPECT_EQ(Read<int64_t>(sums[i]), (std::vector<int64_t>{expected[i], size * (size - 1) / 2}));
    }
  });
}

// What `operation` sends from here, and how often it was called, since the last look.
inline TrafficCount TakeCount(Communicator& world, const std::string& operation) {
  return world.stats()->TakeSnapshot()[{world.name(), operation}];
}

// The closed forms of comm/stats.h; sums of all ranks where those of one depend on rounding.
TEST_P(CommunicatorConformance, CountsTheBytesItSends) {
  RunRanks([](Communicator& world) {
    const int64_t peers = world.size() - 1;
    for (const int64_t n : {0, 1, 16, 331, 8192, 8193, 50001}) {
      const Tensor part = Empty({n}), whole = Empty({n * world.size()});
      std::fill_n(part.data<float>(), n, 0.0f);
      std::fill_n(whole.data<float>(), whole.numel(), 0.0f);
      world.stats()->TakeSnapshot();
      Wait(world.AllReduce(part, part));
      const Tensor total = Filled<int64_t>({TakeCount(world, "AllReduce").sent_bytes});
      Wait(world.AllReduce(total, total));
      const bool may_be_short = 4 * n <= 32768;
      const int64_t by_parts = 2 * 4 * n * peers, sent = Read<int64_t>(total)[0];
      EXPECT_TRUE(sent == (may_be_short ? 4 * n * peers * world.size() : by_parts) ||
                  (may_be_short && sent == by_parts))
          << sent << " bytes of " << n << " floats";
      world.stats()->TakeSnapshot();

      Wait(world.ReduceScatter(whole, part));
      EXPECT_EQ(TakeCount(world, "ReduceScatter").sent_bytes, 4 * n * peers);
      Wait(world.AllGather(part, whole));
      EXPECT_EQ(TakeCount(world, "AllGather").sent_bytes, 4 * n * peers);
      const int root = static_cast<int>(n % world.size());
      Wait(world.Broadcast(part, root));
      EXPECT_EQ(TakeCount(world, "Broadcast").sent_bytes, world.rank() == root ? 4 * n * peers : 0);
    }
  });
}

TEST_P(CommunicatorConformance, CountsRowsMessagesAndGroupsApart) {
  RunRanks([](Communicator& world) {
    const auto group = world.Split(0, world.rank(), "group").value();
    EXPECT_TRUE(world.stats()->TakeSnapshot().empty()) << "Split is not counted";
    std::vector<int64_t> in_rows, out_rows;
    int64_t num_in = 0, num_out = 0;
    for (int peer = 0; peer < world.size(); ++peer) {
      num_in += in_rows.emplace_back(RowsBetween(world.rank(), peer, -1));
      num_out += out_rows.emplace_back(RowsBetween(peer, world.rank(), -1));
    }
    Wait(world.AllToAllV(Empty({num_in, 5}), in_rows, Empty({num_out, 5}), out_rows));
    Wait(group->Barrier());
    Wait(group->Barrier());
    const Tensor data = Empty({9}, DType::kU8);
    if (world.size() > 1 && world.rank() == 0) Wait(group->Send(data, 1));
    if (world.rank() == 1) Wait(group->Recv(data, 0));
    TrafficSnapshot counts = world.stats()->TakeSnapshot();
    const int64_t own = in_rows[static_cast<size_t>(world.rank())];
    const TrafficCount rows = counts[{"world", "AllToAllV"}];
    EXPECT_EQ(rows.calls, 1);
    EXPECT_EQ(rows.sent_bytes, (num_in - own) * 5 * 4);
    EXPECT_GE(rows.in_flight, absl::ZeroDuration());
    const TrafficCount barriers = counts[{"group", "Barrier"}];
    EXPECT_EQ(barriers.calls, 2);
    EXPECT_EQ(barriers.sent_bytes, 0);
    const TrafficCount sends = counts[{"group", "Send"}], receives = counts[{"group", "Recv"}];
    EXPECT_EQ(sends.sent_bytes, world.size() > 1 && world.rank() == 0 ? 9 : 0);
    EXPECT_EQ(receives.calls, world.rank() == 1);
    EXPECT_EQ(receives.sent_bytes, 0);
    EXPECT_EQ(group->stats(), world.stats());
  });
}

TEST_P(CommunicatorConformance, RefusesTensorsThatDoNotFit) {
  RunRanks([](Communicator& world) {
    const int64_t size = world.size();
    const std::string me = absl::StrCat("group 'world' rank ", world.rank(), " of ", size, ": ");
    ExpectRefused(world.AllReduce(Empty({3}), Empty({4})),
                  absl::StrCat("[AllReduce] ", me, "input [3] and output [4] differ in shape"));
    ExpectRefused(world.AllReduce(Empty({3}), Empty({3}, DType::kI32)),
                  "input is f32, output is i32");
    ExpectRefused(world.AllReduce(Empty({3}, DType::kBF16), Empty({3}, DType::kBF16)),
                  "sums of bf16 are not defined");
    ExpectRefused(world.AllReduce(Tensor(), Empty({3})), "a tensor is undefined");
    const Tensor matrix = Empty({4, 4});
    ExpectRefused(world.Broadcast(matrix.NarrowCols(0, 2), 0), "has row pitch 4");
    ExpectRefused(world.AllReduce(matrix.Narrow(0, 2), matrix.Narrow(1, 2)), "overlap in part");
    ExpectRefused(world.AllGather(Empty({3}), Empty({3 * size + 1})),
                  absl::StrCat("[AllGather] ", me, "output has ", 3 * size + 1,
                               " elements, input has 3; ", size, " ranks need ", 3 * size));
    ExpectRefused(world.ReduceScatter(Empty({3 * size + 1}), Empty({3})),
                  absl::StrCat("input has ", 3 * size + 1, " elements, output has 3"));
    Wait(world.Barrier());  // the refused operations left no trace
  });
}

TEST_P(CommunicatorConformance, RefusesRowCountsAndPeersThatDoNotFit) {
  RunRanks([](Communicator& world) {
    const size_t size = static_cast<size_t>(world.size());
    std::vector<int64_t> rows(size, 0), long_rows(size + 1, 0);
    rows[0] = 2;
    ExpectRefused(world.AllToAllV(Empty({3, 4}), rows, Empty({2, 4}), rows),
                  "input row counts add up to 2, the tensor has 3 rows");
    ExpectRefused(world.AllToAllV(Empty({2, 4}), rows, Empty({0, 4}), rows),
                  "output row count 2 is outside [0, 0]");
    ExpectRefused(world.AllToAllV(Empty({2, 4}), rows, Empty({2, 5}), rows),
                  "rows of input [2, 4] and output [2, 5] differ");
    ExpectRefused(world.AllToAllV(Empty({0, 4}), long_rows, Empty({2, 4}), rows),
                  absl::StrCat("input has ", size + 1, " row counts for ", size, " ranks"));
    std::vector<int64_t> more(size, 0);
    more[static_cast<size_t>(world.rank())] = 3;
    std::vector<int64_t> fewer = more;
    fewer[static_cast<size_t>(world.rank())] = 2;
    ExpectRefused(world.AllToAllV(Empty({3, 4}), more, Empty({2, 4}), fewer),
                  "input has 3 rows for this rank itself, output 2");
    ExpectRefused(world.Broadcast(Empty({1}), world.size()),
                  absl::StrCat("root ", size, " is outside [0, ", size, ")"));
    ExpectRefused(world.Send(Empty({1}), -1), absl::StrCat("peer -1 is outside [0, ", size, ")"));
    ExpectRefused(world.Recv(Empty({1}), world.rank()), "is this rank itself");
    Wait(world.Barrier());
  });
}

// No clock decides here: rank 1 sends only after it has been told that rank 0 gave up waiting.
TEST_P(CommunicatorConformance, AMissedDeadlineIsAnErrorAndTheWorkGoesOn) {
  RunRanks([](Communicator& world) {
    if (world.size() == 1) return;
    const Tensor data = Filled(Values(world.rank(), 3)), token = Filled<int64_t>({1});
    if (world.rank() == 0) {
      std::unique_ptr<Work> receive = world.Recv(data, 1).value();
      const absl::Status late = receive->HostWait(absl::Milliseconds(1));
      EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_THAT(std::string(late.message()),
                  ::testing::HasSubstr(absl::StrCat("[Recv #0 of group 'world', rank 0 of ",
                                                    world.size(), "] is not over after 1ms")));
      Wait(world.Send(token, 1));
      Wait(std::move(receive));
      EXPECT_EQ(Read(data), Values(1, 3));
    } else if (world.rank() == 1) {
      Wait(world.Recv(token, 0));
      Wait(world.Send(data, 0));
    }
    Wait(world.Barrier());
  });
}

TEST_P(CommunicatorConformance, AbortEndsEveryRankWithTheReason) {
  RunRanks([](Communicator& world) {
    const Tensor data = Empty({3});
    if (world.rank() == world.size() - 1) {
      world.Abort(absl::InternalError("expert 9 has gone"));
      world.Abort(absl::InternalError("a later reason does not count"));
    } else {
      std::unique_ptr<Work> receive = world.Recv(data, world.size() - 1).value();
      const absl::Status status = receive->HostWait(kPatience);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expert 9 has gone"));
    }
    auto after = world.Barrier();
    const absl::Status status = after.ok() ? (*after)->HostWait(kPatience) : after.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("expert 9 has gone"));
  });
}

}  // namespace meshfold::comm
