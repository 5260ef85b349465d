// Differentiable collectives: Variables in, Variables out, communication in between. Each is the
// adjoint of another one here, forward and backward:
//
//   SumOverGroup        all-reduce           identity             row-parallel output
//   CopyToGroup         identity             all-reduce           column-parallel input
//   GatherRows          all-gather           reduce-scatter       sequence-parallel input
//   ReduceScatterRows   reduce-scatter       all-gather           sequence-parallel output
//   SliceRows           own rows             all-gather           tokens held by all -> own ones
//   UnsliceRows         all-gather           own rows             ... and back
//   GatherColumns       all-gather           reduce-scatter       norms over a whole projection
//   SliceColumns        own columns          zeros elsewhere      (local)
//   RowExchange         all-to-all           all-to-all           dispatch and combine
//
// The first two of each pair differ in what the other ranks' gradients mean: GatherRows' consumers
// have partial gradients that must be summed, UnsliceRows' have the same one on every rank.
// (Shoeybi et al. 2019, f and g; Korthikanti et al. 2022, g and g-bar.)
//
// All are collective over `group`, issue the same operations whatever the data, take f32 with zero
// rows too, wait through Await, and throw StatusError. Rows are dim 0. Cut rows are those of PartOf
// (parallel/sharding.h): ceil(n / size) each, the last ranks' short or empty.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "core/autograd/variable.h"

namespace meshfold::parallel {

using Group = std::shared_ptr<comm::Communicator>;

Variable SumOverGroup(const Variable& x, const Group& group);
Variable CopyToGroup(const Variable& x, const Group& group);

// x: this rank's rows of `num_rows` -> all rows.
Variable GatherRows(const Variable& x, int64_t num_rows, const Group& group);
// x: all rows, a summand of them -> this rank's rows of the sum.
Variable ReduceScatterRows(const Variable& x, const Group& group);
// x: all rows, the same on every rank -> this rank's.
Variable SliceRows(const Variable& x, const Group& group);
// x: this rank's rows of `num_rows` -> all rows.
Variable UnsliceRows(const Variable& x, int64_t num_rows, const Group& group);

// x [T, C] of every rank, side by side: [T, size C].
Variable GatherColumns(const Variable& x, const Group& group);
// Columns [begin, begin + count) of the last dim. Local.
Variable SliceColumns(const Variable& x, int64_t begin, int64_t count);

// How many rows go to each rank of a group, and come from it.
struct RowSplits {
  std::vector<int64_t> send, receive;  // [size]
};

// What each rank tells every other one: counts[r] for rank r. Returns what each rank told this one.
// Waits.
std::vector<int64_t> ExchangeCounts(const std::vector<int64_t>& counts, const Group& group);

// Rows on their way: the first splits.send[0] of `x` to rank 0, and so on; what arrives comes in
// order of rank. Start issues, Finish awaits, so that other work can stand between; in backward the
// node of Finish issues and that of Start awaits.
class RowExchange {
 public:
  // x [sum(send), ...]; f32 where a gradient is wanted, any dtype else.
  static RowExchange Start(const Variable& x, const RowSplits& splits, const Group& group);
  // [sum(receive), ...]. Once.
  Variable Finish();

 private:
  struct Flight;
  std::shared_ptr<Flight> flight_;
  Variable in_flight_;
};

}  // namespace meshfold::parallel
