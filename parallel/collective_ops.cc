#include "parallel/collective_ops.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/autograd/op_check.h"
#include "core/backend/backend.h"
#include "core/backend/completion.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

using StartedWork = absl::StatusOr<std::unique_ptr<comm::Work>>;

void AwaitWork(StartedWork work) { Await(*ValueOrThrow(std::move(work))); }

Shape WithRows(const Shape& shape, int64_t rows) {
  Shape result = shape;
  result.set(0, rows);
  return result;
}

// Communicators take contiguous tensors; activations may have a padded pitch.
Tensor ContiguousCopy(const Tensor& x) {
  Tensor copy = Tensor::Contiguous(x.shape(), x.dtype());
  CurrentBackend().Copy(x, copy);
  return copy;
}

Tensor SummedCopy(const Tensor& x, comm::Communicator& group) {
  Tensor sum = ContiguousCopy(x);
  AwaitWork(group.AllReduce(sum, sum));
  return sum;
}

// Rows a rank has of a tensor cut over the group, all parts made equally long.
struct RowCut {
  int64_t each = 0;
  Interval own;
};

RowCut CutOf(int64_t num_rows, const comm::Communicator& group) {
  return {PartOf(num_rows, group.size(), 0).count, PartOf(num_rows, group.size(), group.rank())};
}

// `x` at the start of a tensor of `rows` rows, zeros behind it.
void CopyPadded(const Tensor& x, const Tensor& padded) {
  const int64_t rows = x.dim(0);
  CurrentBackend().Copy(x, padded.Narrow(0, rows));
  if (rows < padded.dim(0)) {
    CurrentBackend().Fill(0.0, padded.Narrow(rows, padded.dim(0) - rows));
  }
}

Tensor AllGatherRows(const Tensor& x, int64_t num_rows, comm::Communicator& group) {
  const RowCut cut = CutOf(num_rows, group);
  MF_CHECK_EQ(x.dim(0), cut.own.count) << " of " << num_rows << " rows on rank " << group.rank();
  Tensor all = Tensor::Contiguous(WithRows(x.shape(), cut.each * group.size()), x.dtype());
  Tensor own = all.Narrow(cut.each * group.rank(), cut.each);
  CopyPadded(x, own);
  AwaitWork(group.AllGather(own, all));
  return all.Narrow(0, num_rows);
}

Tensor SumScatterRows(const Tensor& x, comm::Communicator& group) {
  const RowCut cut = CutOf(x.dim(0), group);
  Tensor all = Tensor::Contiguous(WithRows(x.shape(), cut.each * group.size()), x.dtype());
  CopyPadded(x, all);
  Tensor own = Tensor::Contiguous(WithRows(x.shape(), cut.each), x.dtype());
  AwaitWork(group.ReduceScatter(all, own));
  return own.Narrow(0, cut.own.count);
}

Tensor OwnRows(const Tensor& x, const comm::Communicator& group) {
  const Interval own = CutOf(x.dim(0), group).own;
  return x.Narrow(own.begin, own.count);
}

Tensor AllGatherColumns(const Tensor& x, comm::Communicator& group) {
  const Tensor own = ContiguousCopy(x.AsMatrix());
  const int64_t rows = own.rows(), cols = own.cols();
  const Tensor parts = Tensor::Contiguous({group.size(), rows, cols}, x.dtype());
  AwaitWork(group.AllGather(own, parts));
  Shape shape = x.shape();
  shape.set(-1, cols * group.size());
  Tensor all = Tensor::Empty(shape, x.dtype());
  for (int64_t r = 0; r < group.size(); ++r) {
    CurrentBackend().Copy(parts.Select(r), all.AsMatrix().NarrowCols(r * cols, cols));
  }
  return all;
}

Tensor SumScatterColumns(const Tensor& x, comm::Communicator& group) {
  const Tensor matrix = x.AsMatrix();
  const int64_t rows = matrix.rows(), cols = matrix.cols() / group.size();
  const Tensor parts = Tensor::Contiguous({group.size(), rows, cols}, x.dtype());
  for (int64_t r = 0; r < group.size(); ++r) {
    CurrentBackend().Copy(matrix.NarrowCols(r * cols, cols), parts.Select(r));
  }
  Shape shape = x.shape();
  shape.set(-1, cols);
  Tensor own = Tensor::Contiguous(shape, x.dtype());
  AwaitWork(group.ReduceScatter(parts, own));
  return own;
}

// An op with one input whose forward gave `out` and whose gradient is adjoint(dout).
Variable RecordLinear(const char* name, const Variable& x, Tensor out,
                      std::function<Tensor(const Tensor&)> adjoint) {
  if (!ShouldRecord({x})) return Variable(std::move(out));
  return Record(name, {std::move(out)}, {x}, Saved(),
                [adjoint = std::move(adjoint)](BackwardCall& call) {
                  call.Set(0, adjoint(call.grad_out()));
                })[0];
}

int64_t Sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

}  // namespace

Variable SumOverGroup(const Variable& x, const Group& group) {
  CheckF32("SumOverGroup", "x", x);
  return RecordLinear("SumOverGroup", x, SummedCopy(x.data(), *group),
                      [](const Tensor& dy) { return dy; });
}

Variable CopyToGroup(const Variable& x, const Group& group) {
  CheckF32("CopyToGroup", "x", x);
  return RecordLinear("CopyToGroup", x, x.data(),
                      [group](const Tensor& dy) { return SummedCopy(dy, *group); });
}

Variable GatherRows(const Variable& x, int64_t num_rows, const Group& group) {
  CheckF32("GatherRows", "x", x);
  return RecordLinear("GatherRows", x, AllGatherRows(x.data(), num_rows, *group),
                      [group](const Tensor& dy) { return SumScatterRows(dy, *group); });
}

Variable ReduceScatterRows(const Variable& x, const Group& group) {
  CheckF32("ReduceScatterRows", "x", x);
  const int64_t num_rows = x.shape()[0];
  return RecordLinear(
      "ReduceScatterRows", x, SumScatterRows(x.data(), *group),
      [group, num_rows](const Tensor& dy) { return AllGatherRows(dy, num_rows, *group); });
}

Variable SliceRows(const Variable& x, const Group& group) {
  CheckF32("SliceRows", "x", x);
  const int64_t num_rows = x.shape()[0];
  return RecordLinear(
      "SliceRows", x, OwnRows(x.data(), *group),
      [group, num_rows](const Tensor& dy) { return AllGatherRows(dy, num_rows, *group); });
}

Variable UnsliceRows(const Variable& x, int64_t num_rows, const Group& group) {
  CheckF32("UnsliceRows", "x", x);
  return RecordLinear("UnsliceRows", x, AllGatherRows(x.data(), num_rows, *group),
                      [group](const Tensor& dy) { return OwnRows(dy, *group); });
}

Variable GatherColumns(const Variable& x, const Group& group) {
  CheckF32("GatherColumns", "x", x);
  return RecordLinear("GatherColumns", x, AllGatherColumns(x.data(), *group),
                      [group](const Tensor& dy) { return SumScatterColumns(dy, *group); });
}

Variable SliceColumns(const Variable& x, int64_t begin, int64_t count) {
  CheckF32("SliceColumns", "x", x);
  const Shape shape = x.shape();
  return RecordLinear("SliceColumns", x, x.data().NarrowCols(begin, count),
                      [shape, begin, count](const Tensor& dy) {
                        Tensor dx = Tensor::Empty(shape);
                        CurrentBackend().Fill(0.0, dx);
                        CurrentBackend().Copy(dy, dx.NarrowCols(begin, count));
                        return dx;
                      });
}

std::vector<int64_t> ExchangeCounts(const std::vector<int64_t>& counts, const Group& group) {
  const int64_t size = group->size();
  MF_CHECK_EQ(static_cast<int64_t>(counts.size()), size);
  const Tensor mine = Tensor::Contiguous({size}, DType::kI64, SystemHostAllocator());
  const Tensor theirs = Tensor::Contiguous({size}, DType::kI64, SystemHostAllocator());
  std::copy(counts.begin(), counts.end(), mine.data<int64_t>());
  const std::vector<int64_t> one_each(counts.size(), 1);
  AwaitOnHost(*ValueOrThrow(group->AllToAllV(mine, one_each, theirs, one_each)));
  return ToVector<int64_t>(theirs);
}

// One exchange and its backward.
struct RowExchange::Flight {
  ~Flight() {
    // A step that failed leaves it unwaited; the group is aborted by then.
    if (work != nullptr) work->HostWait(absl::ZeroDuration()).IgnoreError();
  }
  // Sends the rows of `x` as `splits` say, into a new tensor.
  Tensor Issue(const Tensor& x, const std::vector<int64_t>& send,
               const std::vector<int64_t>& receive) {
    const Tensor out = Tensor::Contiguous(WithRows(x.shape(), Sum(receive)), x.dtype());
    const Tensor in = x.IsContiguous() ? x : ContiguousCopy(x);
    work = ValueOrThrow(group->AllToAllV(in, send, out, receive));
    return out;
  }
  void Land() {
    Await(*work);
    work.reset();
  }

  RowSplits splits;
  Group group;
  std::unique_ptr<comm::Work> work;
  Tensor gradient;  // on its way back
};

RowExchange RowExchange::Start(const Variable& x, const RowSplits& splits, const Group& group) {
  RowExchange exchange;
  exchange.flight_ = std::make_shared<Flight>();
  Flight& flight = *exchange.flight_;
  flight.splits = splits;
  flight.group = group;
  Tensor out = flight.Issue(x.data(), splits.send, splits.receive);
  if (!ShouldRecord({x})) {
    exchange.in_flight_ = Variable(std::move(out));
    return exchange;
  }
  CheckF32("RowExchange", "x", x);
  auto backward = [flight = exchange.flight_](BackwardCall& call) {
    flight->Land();
    call.Set(0, std::exchange(flight->gradient, Tensor()));
  };
  exchange.in_flight_ = Record("RowExchangeStart", {std::move(out)}, {x}, Saved(), backward)[0];
  return exchange;
}

Variable RowExchange::Finish() {
  flight_->Land();
  const Variable arrived = std::exchange(in_flight_, Variable());
  if (!ShouldRecord({arrived})) return arrived;
  auto backward = [flight = flight_](BackwardCall& call) {
    flight->gradient = flight->Issue(call.grad_out(), flight->splits.receive, flight->splits.send);
    call.Set(0, call.grad_out());  // a stand-in: Start's backward has the gradient
  };
  return Record("RowExchangeFinish", {arrived.data()}, {arrived}, Saved(), backward)[0];
}

}  // namespace meshfold::parallel
