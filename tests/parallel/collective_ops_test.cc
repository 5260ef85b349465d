// Differentiable collectives: each forward against its definition on the values of all ranks, each
// backward as the adjoint, <A x, y> = <x, A^T y> summed over the ranks.
#include "parallel/collective_ops.h"

#include <gmock/gmock.h>

#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "comm/thread_world.h"
#include "core/autograd/engine.h"
#include "parallel/sharding.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/scoped_test_context.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

using ::testing::Each;

using Values = std::vector<double>;
// By rank.
using All = std::vector<Tensor>;

constexpr int64_t kCols = 3;

// One collective: what each rank puts in, what it does, and the values that must come out there.
struct Case {
  std::string name;
  std::function<Shape(int rank)> in;
  std::function<Variable(const Variable& x, const Group& group)> op;
  std::function<Values(const All& x, int rank)> want;
  // The gradients that reach the ranks are those of one consumer that all of them have (UnsliceRows
  // and SumOverGroup): dy is the same everywhere, and so is what `op` gave; it counts once.
  bool one_output = false;
  // The inputs are the same on every rank (SliceRows and CopyToGroup): x counts once.
  bool one_input = false;
};

Values Sum(const All& x) {
  Values sum(static_cast<size_t>(x[0].numel()), 0.0);
  for (const Tensor& tensor : x) {
    const Values values = ToVector<double>(tensor);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

Values Joined(const All& x) {
  Values all;
  for (const Tensor& tensor : x) {
    const Values values = ToVector<double>(tensor);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

Values RowsOf(const Values& x, int64_t num_rows, int size, int rank) {
  const Interval own = PartOf(num_rows, size, rank);
  return Values(x.begin() + own.begin * kCols, x.begin() + (own.begin + own.count) * kCols);
}

Values ColumnsJoined(const All& x) {
  Values all;
  for (int64_t row = 0; row < x[0].rows(); ++row) {
    for (const Tensor& tensor : x) {
      for (int64_t col = 0; col < kCols; ++col) all.push_back(tensor.row<float>(row)[col]);
    }
  }
  return all;
}

// How many rows rank `from` sends to rank `to`: uneven, some none.
int64_t RowsBetween(int64_t from, int64_t to, int64_t num_rows) {
  return num_rows == 0 ? 0 : (from * 3 + to * 5 + num_rows) % 4;
}

RowSplits SplitsOf(int rank, int size, int64_t num_rows) {
  RowSplits splits;
  for (int other = 0; other < size; ++other) {
    splits.send.push_back(RowsBetween(rank, other, num_rows));
    splits.receive.push_back(RowsBetween(other, rank, num_rows));
  }
  return splits;
}

Values Exchanged(const All& x, int rank, int64_t num_rows) {
  const int size = static_cast<int>(x.size());
  Values all;
  for (int from = 0; from < size; ++from) {
    const RowSplits splits = SplitsOf(from, size, num_rows);
    const int64_t begin =
        std::accumulate(splits.send.begin(), splits.send.begin() + rank, int64_t{0});
    const Values values = ToVector<double>(x[static_cast<size_t>(from)]);
    all.insert(all.end(), values.begin() + begin * kCols,
               values.begin() + (begin + splits.send[static_cast<size_t>(rank)]) * kCols);
  }
  return all;
}

// All collectives on `size` ranks and `n` rows.
std::vector<Case> CasesFor(int size, int64_t n) {
  const auto whole = [n](int) { return Shape{n, kCols}; };
  const auto part = [=](int rank) { return Shape{PartOf(n, size, rank).count, kCols}; };
  const auto sum = [](const All& x, int) { return Sum(x); };
  const auto own = [](const All& x, int rank) {
    return ToVector<double>(x[static_cast<size_t>(rank)]);
  };
  const auto joined = [](const All& x, int) { return Joined(x); };
  const auto exchanged_in = [=](int rank) {
    const RowSplits splits = SplitsOf(rank, size, n);
    return Shape{std::accumulate(splits.send.begin(), splits.send.end(), int64_t{0}), kCols};
  };
  return {
      {.name = "SumOverGroup", .in = whole, .op = SumOverGroup, .want = sum, .one_output = true},
      {.name = "CopyToGroup", .in = whole, .op = CopyToGroup, .want = own, .one_input = true},
      {.name = "GatherRows",
       .in = part,
       .op = [n](const Variable& x, const Group& group) { return GatherRows(x, n, group); },
       .want = joined},
      {.name = "ReduceScatterRows",
       .in = whole,
       .op = ReduceScatterRows,
       .want = [=](const All& x, int rank) { return RowsOf(Sum(x), n, size, rank); }},
      {.name = "SliceRows",
       .in = whole,
       .op = SliceRows,
       .want = [=](const All& x,
                   int rank) { return RowsOf(ToVector<double>(x[0]), n, size, rank); },
       .one_input = true},
      {.name = "UnsliceRows",
       .in = part,
       .op = [n](const Variable& x, const Group& group) { return UnsliceRows(x, n, group); },
       .want = joined,
       .one_output = true},
      {.name = "GatherColumns",
       .in = whole,
       .op = GatherColumns,
       .want = [](const All& x, int) { return ColumnsJoined(x); }},
      {.name = "RowExchange",
       .in = exchanged_in,
       .op =
           [n](const Variable& x, const Group& group) {
             const RowSplits splits = SplitsOf(group->rank(), group->size(), n);
             return RowExchange::Start(x, splits, group).Finish();
           },
       .want = [n](const All& x, int rank) { return Exchanged(x, rank, n); }}};
}

Tensor Random(const std::string& name, bool same_everywhere, int rank, const Shape& shape) {
  return testing::RandomTensor(same_everywhere ? name : absl::StrCat(name, rank), shape);
}

class CollectiveOpsTest : public ::testing::Test {
 protected:
  void OnRanks(int size, const std::function<void(const Group& group)>& body) {
    const absl::Status status = comm::RunThreadWorld(
        {.size = size, .deadline = absl::Seconds(60)}, [&](comm::Communicator& end) {
          body(Group(&end, [](comm::Communicator*) {}));
          return absl::OkStatus();
        });
    EXPECT_TRUE(status.ok()) << status;
  }

  void Check(const Case& c, int size) {
    All x, y(static_cast<size_t>(size)), dy = y, dx = y;
    for (int rank = 0; rank < size; ++rank) {
      x.push_back(Random("x", c.one_input, rank, c.in(rank)));
    }
    OnRanks(size, [&](const Group& group) {
      const size_t rank = static_cast<size_t>(group->rank());
      const Variable leaf = Variable::Leaf(x[rank]);
      const Variable out = c.op(leaf, group);
      y[rank] = out.data();
      dy[rank] = Random("dy", c.one_output, group->rank(), out.shape());
      Backward({Root{out, dy[rank]}}, {.leaves = {leaf}});
      dx[rank] = leaf.grad().tensor();
    });
    double forward = 0, backward = 0, scale = 0;
    for (int rank = 0; rank < size; ++rank) {
      const size_t r = static_cast<size_t>(rank);
      const Values got = ToVector<double>(y[r]), want = c.want(x, rank);
      ASSERT_EQ(got.size(), want.size()) << "rank " << rank;
      for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6 * size);
      if (rank == 0 || !c.one_output) {
        forward += testing::Dot(got, ToVector<double>(dy[r]));
        scale += testing::Dot(got, got);
      }
      if (rank == 0 || !c.one_input) {
        backward += testing::Dot(ToVector<double>(x[r]), ToVector<double>(dx[r]));
      }
    }
    EXPECT_NEAR(forward, backward, 1e-6 * (1 + scale));
    // What all ranks have alike has a gradient that all ranks have alike.
    for (int rank = 1; c.one_input && rank < size; ++rank) {
      EXPECT_EQ(ToVector<float>(dx[static_cast<size_t>(rank)]), ToVector<float>(dx[0]));
    }
  }

  testing::ScopedTestContext context_;
};

TEST_F(CollectiveOpsTest, ForwardIsTheDefinitionAndBackwardTheAdjoint) {
  for (int size : {1, 2, 3, 4}) {
    for (int64_t num_rows : {0, 1, 2, 5, 8}) {
      for (const Case& c : CasesFor(size, num_rows)) {
        SCOPED_TRACE(absl::StrCat(c.name, ", ", size, " ranks, ", num_rows, " rows"));
        Check(c, size);
      }
    }
  }
}

// Rows of 1 KiB have a padded pitch, which communicators do not take.
TEST_F(CollectiveOpsTest, TensorsWithAPaddedPitchTravel) {
  OnRanks(2, [](const Group& group) {
    Tensor x = Tensor::Empty({3, 256});
    ASSERT_FALSE(x.IsContiguous());
    CurrentBackend().Fill(group->rank() + 1, x);
    const Tensor sum = SumOverGroup(Variable(x), group).data();
    EXPECT_THAT(ToVector<float>(sum), Each(3.0f));
    const RowSplits splits = {.send = {1, 2}, .receive = {1, 1}};
    const RowSplits other = {.send = {1, 2}, .receive = {2, 2}};
    const Tensor y =
        RowExchange::Start(Variable(x), group->rank() == 0 ? splits : other, group).Finish().data();
    EXPECT_EQ(y.dim(0), group->rank() == 0 ? 2 : 4);
  });
}

TEST_F(CollectiveOpsTest, SliceColumnsIsLocalWithZerosElsewhereInItsGradient) {
  const Variable x = Variable::Leaf(testing::MakeTensor({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4}));
  const Variable y = SliceColumns(x, 1, 2);
  EXPECT_EQ(ToVector<float>(y.data()), (std::vector<float>{2, 3, 6, 7}));
  Backward({Root{y, testing::MakeTensor({9, 8, 7, 6}, {2, 2})}}, {.leaves = {x}});
  EXPECT_EQ(ToVector<float>(x.grad().tensor()), (std::vector<float>{0, 9, 8, 0, 0, 7, 6, 0}));
}

TEST_F(CollectiveOpsTest, CountsComeFromWhoToldThem) {
  for (int size : {1, 2, 3, 4}) {
    OnRanks(size, [size](const Group& group) {
      std::vector<int64_t> told, want;
      for (int other = 0; other < size; ++other) {
        told.push_back(10 * group->rank() + other);
        want.push_back(10 * other + group->rank());
      }
      EXPECT_EQ(ExchangeCounts(told, group), want);
    });
  }
}

// Indices travel without a gradient; two exchanges may be on their way, finished in any order.
TEST_F(CollectiveOpsTest, IntegersTravelBesideOtherRows) {
  OnRanks(2, [](const Group& group) {
    const RowSplits splits = {.send = {1, 1}, .receive = {1, 1}};
    const int32_t rank = group->rank();
    RowExchange ids = RowExchange::Start(
        Variable(testing::MakeIds({10 * rank, 10 * rank + 1}, {2, 1})), splits, group);
    const Variable x = Variable::Leaf(testing::MakeTensor({1.0 + rank, 3.0 + rank}, {2, 1}));
    RowExchange rows = RowExchange::Start(x, splits, group);
    const Variable y = rows.Finish();
    EXPECT_EQ(ToVector<int32_t>(ids.Finish().data()), (std::vector<int32_t>{rank, 10 + rank}));
    Backward({Root{y, testing::MakeTensor({5.0 + rank, 7.0 + rank}, {2, 1})}}, {.leaves = {x}});
    // What this rank sent to r comes back as r's gradient for rows from here.
    const float first = rank == 0 ? 5 : 7;
    EXPECT_EQ(ToVector<float>(x.grad().tensor()), (std::vector<float>{first, first + 1}));
  });
}

}  // namespace
}  // namespace meshfold::parallel
