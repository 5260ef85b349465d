#include "parallel/rank_layout.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace meshfold::parallel {
namespace {

// The product, or bound + 1 where it is larger.
int64_t BoundedProduct(std::initializer_list<int64_t> factors, int64_t bound) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product) || product > bound) return bound + 1;
  }
  return product;
}

std::string Ranks(int64_t count) { return absl::StrCat(count, count == 1 ? " rank" : " ranks"); }

}  // namespace

absl::StatusOr<RankLayout> PlanRanks(const ParallelSizes& s, int64_t world) {
  const int64_t replica = BoundedProduct({s.tensor, s.pipeline, s.context, s.ulysses}, world);
  const int64_t data = s.data != 0 ? s.data : std::max<int64_t>(1, world / replica);
  if (BoundedProduct({data, replica}, world) != world) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: data ", s.data == 0 ? "auto" : absl::StrCat(s.data), " x tensor ",
                     s.tensor, " x pipeline ", s.pipeline, " x context ", s.context, " x ulysses ",
                     s.ulysses, " does not make ", Ranks(world)));
  }
  const int64_t stage = world / s.pipeline;
  const int64_t expert = BoundedProduct({s.expert, s.expert_tensor}, stage);
  if (expert > stage || stage % expert != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel: expert ", s.expert, " x expert_tensor ", s.expert_tensor,
                     " does not divide the ", Ranks(stage), " of a pipeline stage"));
  }
  MF_ASSIGN_OR_RETURN(comm::RankGrid dense, comm::RankGrid::Create({{"pp", s.pipeline},
                                                                    {"dp", data},
                                                                    {"cp", s.context},
                                                                    {"ulysses", s.ulysses},
                                                                    {"tp", s.tensor}},
                                                                   world));
  MF_ASSIGN_OR_RETURN(
      comm::RankGrid experts,
      comm::RankGrid::Create(
          {{"pp", s.pipeline}, {"edp", stage / expert}, {"ep", s.expert}, {"etp", s.expert_tensor}},
          world));
  return RankLayout{std::move(dense), std::move(experts)};
}

}  // namespace meshfold::parallel
