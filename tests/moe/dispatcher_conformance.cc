#include "tests/moe/dispatcher_conformance.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <utility>

#include "core/autograd/engine.h"
#include "core/autograd/ops.h"
#include "core/base/rng.h"

namespace meshfold::moe {
namespace {

constexpr int64_t kD = 3;

// Inputs of token t, whatever rank it is on.
float XOf(int64_t t, int64_t d) { return static_cast<float>(8 * t + d + 1); }
float WeightOf(int64_t t, int64_t k) { return static_cast<float>(4 * t + k + 1); }
float DyOf(int64_t t, int64_t d) { return static_cast<float>(t - 5 * d); }
// The gradient that the row of (token, expert) sends into its weight.
float DweightOf(int64_t t, int64_t e) { return static_cast<float>(16 * t + e + 1); }

// The slow reference: where every token copy belongs.
class Expected {
 public:
  explicit Expected(const DispatchCase& c) : c_(c), counts_RE_(c.tokens_of_rank.size()) {
    std::vector<int64_t> taken(static_cast<size_t>(c.num_experts), 0);
    int64_t t = 0;
    for (size_t rank = 0; rank < counts_RE_.size(); ++rank) {
      counts_RE_[rank].assign(static_cast<size_t>(c.num_experts), 0);
      for (int64_t i = 0; i < c.tokens_of_rank[rank]; ++i, ++t) {
        for (int64_t k = 0; k < c.top_k; ++k) AddCopy(rank, t, k, taken);
      }
    }
  }

  struct Copy {
    int64_t token, slot, expert;
  };
  const std::vector<std::vector<int64_t>>& counts_RE() const { return counts_RE_; }
  // Copies of `expert` in row order.
  std::vector<Copy> CopiesOf(int64_t expert) const {
    std::vector<Copy> copies;
    for (const Copy& copy : copies_) {
      if (copy.expert == expert) copies.push_back(copy);
    }
    return copies;
  }
  // Sum over the copies of token t of expert + 1: what the layer multiplies it by.
  float FactorOf(int64_t t) const {
    float factor = 0;
    for (const Copy& copy : copies_) {
      if (copy.token == t) factor += static_cast<float>(copy.expert + 1);
    }
    return factor;
  }
  // Whether slot k of token t has a row, and the gradient of its weight.
  float DweightAt(int64_t t, int64_t k) const {
    for (const Copy& copy : copies_) {
      if (copy.token == t && copy.slot == k) return DweightOf(t, copy.expert);
    }
    return 0;
  }

 private:
  void AddCopy(size_t rank, int64_t t, int64_t k, std::vector<int64_t>& taken) {
    if (!c_.valid.empty() && c_.valid[static_cast<size_t>(t)] == 0) return;
    int64_t expert = c_.ids[static_cast<size_t>(t * c_.top_k + k)];
    int64_t& count = taken[static_cast<size_t>(expert)];
    if (c_.capacity > 0 && count == c_.capacity) return;
    ++count;
    ++counts_RE_[rank][static_cast<size_t>(expert)];
    copies_.push_back({t, k, expert});
  }

  const DispatchCase& c_;
  std::vector<std::vector<int64_t>> counts_RE_;
  std::vector<Copy> copies_;
};

// One rank's run of one case, cut into its stages so that two can be interleaved.
class Run {
 public:
  Run(Dispatcher& dispatcher, const DispatchCase& c, int64_t rank)
      : c_(c),
        rank_(rank),
        expert_tensor_(static_cast<int64_t>(c.tokens_of_rank.size()) / dispatcher.num_targets()),
        first_token_(
            std::accumulate(c.tokens_of_rank.begin(), c.tokens_of_rank.begin() + rank, int64_t{0})),
        num_tokens_(c.tokens_of_rank[static_cast<size_t>(rank)]),
        expected_(c) {
    plan_ = *(*PlannerRegistry().Find("static_ep"))(
        {.counts_RE = expected_.counts_RE(), .num_targets = dispatcher.num_targets()});
    x_TD_ = Variable::Leaf(Table(kD, XOf));
    weights_TK_ = Variable::Leaf(Table(c.top_k, WeightOf));
    // Both die before the dispatch is finished, as DispatchInput says.
    SortedTokens sorted = Sort();
    ExpertPlan plan = plan_;
    dispatch_ = dispatcher.DispatchStart(
        {.x_TD = x_TD_, .weights_TK = weights_TK_, .sorted = sorted, .plan = plan});
  }

  void Finish() {
    DispatchedRows rows = dispatch_->DispatchFinish();
    CheckRows(rows);
    dispatch_->CombineStart(Multiply(rows.x_RD, Factors()));
    Variable y_TD = dispatch_->CombineFinish();
    EXPECT_EQ(y_TD.shape(), x_TD_.shape());
    CheckTable("y", y_TD.data(), kD,
               [&](int64_t t, int64_t d) { return expected_.FactorOf(t) * XOf(t, d); });
    Backward({Root{y_TD, Table(kD, DyOf)}, Root{rows.weights_R, Dweights()}},
             {.leaves = {x_TD_, weights_TK_}});
    CheckTable("dx", x_TD_.grad().tensor(), kD,
               [&](int64_t t, int64_t d) { return expected_.FactorOf(t) * DyOf(t, d); });
    CheckTable("dweights", weights_TK_.grad().tensor(), c_.top_k,
               [&](int64_t t, int64_t k) { return expected_.DweightAt(t, k); });
  }

 private:
  // f32 [local tokens, cols] of a function of global token and column.
  template <typename F>
  Tensor Table(int64_t cols, F&& value) const {
    std::vector<float> values;
    for (int64_t i = 0; i < num_tokens_; ++i) {
      for (int64_t j = 0; j < cols; ++j) values.push_back(value(first_token_ + i, j));
    }
    return TensorFromVector(values, {num_tokens_, cols});
  }

  template <typename F>
  void CheckTable(const char* what, const Tensor& got, int64_t cols, F&& want) const {
    EXPECT_EQ(ToVector<float>(got), ToVector<float>(Table(cols, want))) << what;
  }

  SortedTokens Sort() const {
    auto local = c_.ids.begin() + first_token_ * c_.top_k;
    Tensor ids_TK = TensorFromVector(std::vector<int32_t>(local, local + num_tokens_ * c_.top_k),
                                     {num_tokens_, c_.top_k});
    Tensor valid_T;
    if (!c_.valid.empty()) {
      auto begin = c_.valid.begin() + first_token_;
      valid_T = TensorFromVector(std::vector<uint8_t>(begin, begin + num_tokens_), {num_tokens_});
    }
    SortedTokens sorted = SortTokens(ids_TK, valid_T, c_.num_experts);
    LimitRows(ids_TK, valid_T, expected_.counts_RE()[static_cast<size_t>(rank_)], sorted);
    return sorted;
  }

  int64_t target() const { return rank_ / expert_tensor_; }
  // What this rank's summand of an expert is of the whole: the first of its target makes up for
  // the others, which take 2, 4, ...
  float Summand() const {
    const int64_t place = rank_ % expert_tensor_;
    if (place > 0) return static_cast<float>(2 * place);
    return static_cast<float>(1 - expert_tensor_ * (expert_tensor_ - 1));
  }

  // Calls body(copy) for the rows that this rank computes, in order.
  template <typename F>
  void ForEachRow(F&& body) const {
    for (int64_t expert : plan_.groups[static_cast<size_t>(target())]) {
      for (const Expected::Copy& copy : expected_.CopiesOf(expert)) body(copy);
    }
  }

  void CheckRows(const DispatchedRows& rows) const {
    std::vector<float> x, weights;
    ForEachRow([&](const Expected::Copy& copy) {
      for (int64_t d = 0; d < kD; ++d) x.push_back(XOf(copy.token, d));
      weights.push_back(WeightOf(copy.token, copy.slot));
    });
    EXPECT_EQ(rows.rows.offsets, GroupRows(plan_, target()).offsets);
    EXPECT_EQ(ToVector<float>(rows.x_RD.data()), x);
    EXPECT_EQ(ToVector<float>(rows.weights_R.data()), weights);
  }

  Variable Factors() const {
    std::vector<float> factors;
    ForEachRow([&](const Expected::Copy& copy) {
      factors.insert(factors.end(), kD, Summand() * static_cast<float>(copy.expert + 1));
    });
    int64_t num_rows = static_cast<int64_t>(factors.size()) / kD;
    return Variable(TensorFromVector(factors, {num_rows, kD}));
  }

  Tensor Dweights() const {
    std::vector<float> dweights;
    ForEachRow([&](const Expected::Copy& copy) {
      dweights.push_back(Summand() * DweightOf(copy.token, copy.expert));
    });
    return TensorFromVector(dweights, {static_cast<int64_t>(dweights.size())});
  }

  const DispatchCase& c_;
  int64_t rank_, expert_tensor_, first_token_, num_tokens_;
  Expected expected_;
  ExpertPlan plan_;
  Variable x_TD_, weights_TK_;
  std::unique_ptr<Dispatch> dispatch_;
};

// K different experts for each token, from `candidates` experts, the first one fixed if wanted.
std::vector<int32_t> Ids(int64_t num_tokens, int64_t top_k, int64_t candidates, bool all_to_zero) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < num_tokens; ++t) {
    RngKey key = FoldIn(MakeRngKey(7, "ids"), static_cast<uint64_t>(t));
    size_t first = ids.size();
    if (all_to_zero) ids.push_back(0);
    for (uint64_t i = 0; ids.size() < first + static_cast<size_t>(top_k); ++i) {
      int32_t id = static_cast<int32_t>(PermuteIndex(key, i, static_cast<uint64_t>(candidates)));
      if (!all_to_zero || id != 0) ids.push_back(id);
    }
  }
  return ids;
}

// Rank r gets about r + 1 shares of the tokens.
std::vector<int64_t> CutUnevenly(int64_t num_tokens, int64_t num_ranks) {
  std::vector<int64_t> tokens;
  int64_t shares = num_ranks * (num_ranks + 1) / 2, left = num_tokens;
  for (int64_t rank = 0; rank + 1 < num_ranks; ++rank) {
    tokens.push_back(num_tokens * (rank + 1) / shares);
    left -= tokens.back();
  }
  tokens.push_back(left);
  return tokens;
}

}  // namespace

std::vector<DispatchCase> DispatchCases(int64_t num_ranks) {
  auto make = [&](std::string name, int64_t num_tokens, int64_t num_experts, int64_t top_k,
                  int64_t candidates, bool all_to_zero) {
    return DispatchCase{.name = std::move(name),
                        .num_experts = num_experts,
                        .top_k = top_k,
                        .tokens_of_rank = CutUnevenly(num_tokens, num_ranks),
                        .ids = Ids(num_tokens, top_k, candidates, all_to_zero)};
  };
  std::vector<DispatchCase> cases = {
      make("balanced", 16, 4, 2, 4, false), make("all_to_one", 9, 4, 1, 4, true),
      make("skewed", 12, 6, 3, 6, true),    make("idle_experts", 10, 8, 2, 3, false),
      make("odd", 7, 5, 3, 5, false),       make("every_expert", 6, 4, 4, 4, false),
      make("one_token", 1, 4, 2, 4, false), make("no_token", 0, 4, 2, 4, false)};
  cases.push_back(make("padding", 10, 4, 2, 4, false));
  cases.back().valid = {1, 0, 1, 1, 0, 0, 1, 1, 0, 0};
  cases.push_back(make("only_padding", 3, 4, 2, 4, false));
  cases.back().valid = {0, 0, 0};
  cases.push_back(make("drops", 12, 4, 2, 4, true));
  cases.back().capacity = 4;
  for (bool first : {true, false}) {
    cases.push_back(make(first ? "first_rank_alone" : "last_rank_alone", 7, 4, 2, 4, false));
    cases.back().tokens_of_rank.assign(static_cast<size_t>(num_ranks), 0);
    cases.back().tokens_of_rank[first ? 0 : static_cast<size_t>(num_ranks) - 1] = 7;
  }
  return cases;
}

void CheckDispatcher(Dispatcher& dispatcher, const DispatchCase& dispatch_case, int64_t rank) {
  SCOPED_TRACE(::testing::Message() << dispatch_case.name << " on rank " << rank);
  Run(dispatcher, dispatch_case, rank).Finish();
}

void CheckTwoOnTheirWay(Dispatcher& dispatcher, const DispatchCase& first,
                        const DispatchCase& second, int64_t rank) {
  SCOPED_TRACE(::testing::Message() << first.name << " beside " << second.name);
  Run first_run(dispatcher, first, rank), second_run(dispatcher, second, rank);
  first_run.Finish();
  second_run.Finish();
}

}  // namespace meshfold::moe
