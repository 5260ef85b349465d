// What every dispatcher must do, against a slow reference that knows all tokens of all ranks.
//
// Values are small integers, so sums are exact and every comparison is equality. "Experts" are
// factors: expert e multiplies rows by e + 1; the ranks of a target (expert tensor parallelism)
// have factors that add up to it. Each rank checks its own part alone, so the suite serves one rank
// and many: call CheckDispatcher on every rank of the group at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "moe/dispatcher.h"

namespace meshfold::moe {

// Tokens of one micro-batch on all ranks of an expert group.
struct DispatchCase {
  std::string name;
  int64_t num_experts = 1, top_k = 1;
  std::vector<int64_t> tokens_of_rank;  // tokens are numbered through the ranks
  std::vector<int32_t> ids;             // [all tokens, K]
  std::vector<uint8_t> valid;           // [all tokens], or empty: no padding
  int64_t capacity = 0;                 // 0: none; of an expert, over all ranks
};

// Balanced, skewed, with idle experts, all experts, odd numbers, padding, drops, one token, no
// token, tokens on one rank alone; the others cut unevenly over the ranks.
std::vector<DispatchCase> DispatchCases(int64_t num_ranks);

// Dispatches, applies the factors, combines, and runs backward; compares rows, their order and
// weights, outputs and the gradients of x and weights. Collective over the group.
void CheckDispatcher(Dispatcher& dispatcher, const DispatchCase& dispatch_case, int64_t rank);

// Two micro-batches on their way at once keep apart. Collective over the group.
void CheckTwoOnTheirWay(Dispatcher& dispatcher, const DispatchCase& first,
                        const DispatchCase& second, int64_t rank);

}  // namespace meshfold::moe
