#include "tests/reference/moe/moe_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace meshfold::reference {
namespace {

using Vector = std::vector<double>;
using moe::MoeOptions;

double* Row(Vector& matrix, int64_t row, int64_t cols) { return matrix.data() + row * cols; }
const double* Row(const Vector& matrix, int64_t row, int64_t cols) {
  return matrix.data() + row * cols;
}

double Dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// y += alpha x.
void AddScaled(double alpha, const double* x, double* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += alpha * x[i];
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

Vector Draw(uint64_t seed, const char* name, int64_t count, double stddev) {
  std::vector<float> drawn(static_cast<size_t>(count));
  FillNormal(MakeRngKey(seed, name), 0, 0.0f, static_cast<float>(stddev), absl::MakeSpan(drawn));
  return Vector(drawn.begin(), drawn.end());
}

// One SwiGLU expert on one token: gate_up [2H, D] (gate first), down [D, H].
struct Swiglu {
  int64_t d, h;
  const double *gate_up, *down;

  struct Hidden {
    Vector gate, up, act;
  };
  Hidden HiddenOf(const double* x) const {
    Hidden hidden{Vector(h), Vector(h), Vector(h)};
    for (int64_t i = 0; i < h; ++i) {
      hidden.gate[i] = Dot(gate_up + i * d, x, d);
      hidden.up[i] = Dot(gate_up + (h + i) * d, x, d);
      hidden.act[i] = hidden.gate[i] * Sigmoid(hidden.gate[i]) * hidden.up[i];
    }
    return hidden;
  }
  Vector Output(const double* x) const {
    Hidden hidden = HiddenOf(x);
    Vector y(d);
    for (int64_t j = 0; j < d; ++j) y[j] = Dot(down + j * h, hidden.act.data(), h);
    return y;
  }
  // Adds gradients for an output gradient of weight * dy.
  void Backward(const double* x, const double* dy, double weight, double* dx, double* dgate_up,
                double* ddown) const {
    Hidden hidden = HiddenOf(x);
    Vector dact(h);
    for (int64_t j = 0; j < d; ++j) {
      AddScaled(weight * dy[j], down + j * h, dact.data(), h);
      AddScaled(weight * dy[j], hidden.act.data(), ddown + j * h, h);
    }
    for (int64_t i = 0; i < h; ++i) {
      double s = Sigmoid(hidden.gate[i]), silu = hidden.gate[i] * s;
      double dgate = dact[i] * hidden.up[i] * (s + silu * (1 - s)), dup = dact[i] * silu;
      AddScaled(dgate, x, dgate_up + i * d, d);
      AddScaled(dup, x, dgate_up + (h + i) * d, d);
      AddScaled(dgate, gate_up + i * d, dx, d);
      AddScaled(dup, gate_up + (h + i) * d, dx, d);
    }
  }
};

Swiglu Expert(const MoeProblem& problem, int64_t e) {
  int64_t d = problem.options.hidden_size, f = problem.options.expert_size;
  return {d, f, problem.tensors.gate_up_E2FD.data() + e * 2 * f * d,
          problem.tensors.down_EDF.data() + e * d * f};
}

Swiglu Shared(const MoeProblem& problem) {
  return {problem.options.hidden_size,
          problem.options.num_shared_experts * problem.options.expert_size,
          problem.tensors.shared_gate_up_2SD.data(), problem.tensors.shared_down_DS.data()};
}

// The `count` best of `candidates`, ties to the earlier one; lowers *gap to the distance between
// the last chosen and the best one left.
std::vector<int64_t> Best(const std::vector<int64_t>& candidates, const Vector& score,
                          int64_t count, double* gap) {
  std::vector<int64_t> order = candidates;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return score[static_cast<size_t>(a)] > score[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i + 1 < order.size() && i < static_cast<size_t>(count); ++i) {
    *gap = std::min(*gap, score[order[i]] - score[order[i + 1]]);
  }
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<int64_t> Range(int64_t count) {
  std::vector<int64_t> range(static_cast<size_t>(count));
  std::iota(range.begin(), range.end(), int64_t{0});
  return range;
}

std::vector<int64_t> Choose(const MoeOptions& options, const Vector& biased, double* gap) {
  if (options.num_groups == 1) return Best(Range(options.num_experts), biased, options.top_k, gap);
  int64_t size = options.num_experts / options.num_groups;
  Vector group_score;
  for (int64_t g = 0; g < options.num_groups; ++g) {
    Vector members(biased.begin() + g * size, biased.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    group_score.push_back(members[0] + members[1]);
  }
  std::vector<int64_t> groups =
      Best(Range(options.num_groups), group_score, options.top_k_groups, gap);
  std::sort(groups.begin(), groups.end());
  std::vector<int64_t> candidates;
  for (int64_t g : groups) {
    for (int64_t i = 0; i < size; ++i) candidates.push_back(g * size + i);
  }
  return Best(candidates, biased, options.top_k, gap);
}

bool IsSigmoid(const MoeOptions& options) { return options.router == "sigmoid_group_bias"; }

// Scores, balance probabilities, choice and weights of token t.
void RouteToken(const MoeProblem& problem, int64_t t, MoeForward& out) {
  const MoeOptions& options = problem.options;
  int64_t d = options.hidden_size, num_experts = options.num_experts, k = options.top_k;
  double* logits = Row(out.logits_TE, t, num_experts);
  double* scores = Row(out.scores_TE, t, num_experts);
  double* probs = Row(out.probs_TE, t, num_experts);
  double exp_sum = 0, score_sum = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    logits[e] = Dot(Row(problem.tensors.x_TD, t, d), Row(problem.tensors.gate_ED, e, d), d);
    exp_sum += std::exp(logits[e]);
  }
  for (int64_t e = 0; e < num_experts; ++e) {
    scores[e] = IsSigmoid(options) ? Sigmoid(logits[e]) : std::exp(logits[e]) / exp_sum;
    score_sum += scores[e];
  }
  Vector biased(scores, scores + num_experts);
  for (int64_t e = 0; e < num_experts; ++e) {
    probs[e] = scores[e] / score_sum;
    if (!problem.bias_E.empty()) biased[e] += problem.bias_E[e];
  }
  std::vector<int64_t> ids = Choose(options, biased, &out.min_gap);
  double chosen_sum = 0;
  for (int64_t id : ids) chosen_sum += scores[id];
  for (int64_t i = 0; i < k; ++i) {
    double weight = options.renormalize ? scores[ids[i]] / chosen_sum : scores[ids[i]];
    out.weights_TK[t * k + i] = weight * options.routed_scaling;
    out.ids_TK[t * k + i] = ids[i];
  }
}

void Count(const MoeProblem& problem, MoeForward& out) {
  const MoeOptions& options = problem.options;
  double rows = options.capacity_factor * problem.num_valid() * options.top_k / options.num_experts;
  int64_t capacity = static_cast<int64_t>(std::ceil(rows - 1e-9));
  for (int64_t t = 0; t < problem.num_tokens; ++t) {
    if (!problem.valid(t)) continue;
    for (int64_t i = t * options.top_k; i < (t + 1) * options.top_k; ++i) {
      int64_t e = out.ids_TK[i];
      ++out.routed_E[e];
      if (options.capacity_factor > 0 && out.kept_E[e] >= capacity) continue;
      out.kept_TK[i] = true;
      ++out.kept_E[e];
    }
  }
}

// coefficient * weight / T, or 0 without tokens.
double PerToken(const MoeProblem& problem, double coefficient) {
  int64_t tokens = problem.num_valid();
  return tokens == 0 ? 0.0 : coefficient * problem.token_weight / tokens;
}

// What the balance loss multiplies prob_te by.
double BalanceCoefficient(const MoeProblem& problem, const MoeForward& forward, int64_t e) {
  double fraction = static_cast<double>(forward.routed_E[e]) /
                    static_cast<double>(problem.num_valid() * problem.options.top_k);
  return PerToken(problem, problem.options.aux_loss_coefficient) * problem.options.num_experts *
         fraction;
}

double LogSumExp(const double* logits, int64_t n) {
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += std::exp(logits[e]);
  return std::log(sum);
}

void AddLosses(const MoeProblem& problem, MoeForward& out) {
  int64_t num_experts = problem.options.num_experts;
  for (int64_t t = 0; t < problem.num_tokens; ++t) {
    if (!problem.valid(t)) continue;
    for (int64_t e = 0; e < num_experts; ++e) {
      out.aux += BalanceCoefficient(problem, out, e) * out.probs_TE[t * num_experts + e];
    }
    double lse = LogSumExp(Row(out.logits_TE, t, num_experts), num_experts);
    out.z += PerToken(problem, problem.options.z_loss_coefficient) * lse * lse;
  }
}

// Gradient of the weights of token t to its scores: dscores += ...
void BackwardWeights(const MoeProblem& problem, const MoeForward& forward, int64_t t,
                     const Vector& dweights, Vector& dscores) {
  const MoeOptions& options = problem.options;
  int64_t k = options.top_k;
  const double* scores = Row(forward.scores_TE, t, options.num_experts);
  double sum = 0, weighted = 0;
  for (int64_t i = 0; i < k; ++i) {
    double score = scores[forward.ids_TK[t * k + i]];
    sum += score;
    weighted += dweights[i] * score;
  }
  for (int64_t i = 0; i < k; ++i) {
    double dscore = options.renormalize ? (dweights[i] - weighted / sum) / sum : dweights[i];
    dscores[forward.ids_TK[t * k + i]] += options.routed_scaling * dscore;
  }
}

// From gradients of scores, balance loss and z loss to those of token t's logits.
Vector BackwardScores(const MoeProblem& problem, const MoeForward& forward, int64_t t,
                      Vector dscores) {
  const MoeOptions& options = problem.options;
  int64_t n = options.num_experts;
  const double* scores = Row(forward.scores_TE, t, n);
  const double* probs = Row(forward.probs_TE, t, n);
  const double* logits = Row(forward.logits_TE, t, n);
  bool valid = problem.valid(t);
  double score_sum = std::accumulate(scores, scores + n, 0.0);
  Vector dprobs(n, 0.0);
  for (int64_t e = 0; e < n && valid; ++e) dprobs[e] = BalanceCoefficient(problem, forward, e);
  double prob_dot = Dot(dprobs.data(), probs, n);
  // probs = scores / sum(scores); for softmax the sum is 1 and stays so, as the rule below knows.
  for (int64_t e = 0; e < n; ++e) dscores[e] += (dprobs[e] - prob_dot) / score_sum;

  Vector dlogits(n);
  double score_dot = Dot(dscores.data(), scores, n), lse = LogSumExp(logits, n);
  double dz = valid ? PerToken(problem, options.z_loss_coefficient) * 2 * lse : 0.0;
  for (int64_t e = 0; e < n; ++e) {
    dlogits[e] = IsSigmoid(options) ? dscores[e] * scores[e] * (1 - scores[e])
                                    : scores[e] * (dscores[e] - score_dot);
    dlogits[e] += dz * std::exp(logits[e] - lse);
  }
  return dlogits;
}

void BackwardToken(const MoeProblem& problem, const MoeForward& forward, int64_t t,
                   const double* dy, MoeTensors& grads) {
  const MoeOptions& options = problem.options;
  int64_t d = options.hidden_size, f = options.expert_size, k = options.top_k;
  const double* x = Row(problem.tensors.x_TD, t, d);
  double* dx = Row(grads.x_TD, t, d);
  Vector dweights(k, 0.0), dscores(options.num_experts, 0.0);
  for (int64_t i = 0; i < k; ++i) {
    if (!forward.kept_TK[t * k + i]) continue;
    int64_t e = forward.ids_TK[t * k + i];
    Swiglu expert = Expert(problem, e);
    dweights[i] = Dot(expert.Output(x).data(), dy, d);
    expert.Backward(x, dy, forward.weights_TK[t * k + i], dx,
                    grads.gate_up_E2FD.data() + e * 2 * f * d, grads.down_EDF.data() + e * d * f);
  }
  BackwardWeights(problem, forward, t, dweights, dscores);
  Vector dlogits = BackwardScores(problem, forward, t, dscores);
  for (int64_t e = 0; e < options.num_experts; ++e) {
    AddScaled(dlogits[e], x, Row(grads.gate_ED, e, d), d);
    AddScaled(dlogits[e], Row(problem.tensors.gate_ED, e, d), dx, d);
  }
  if (options.num_shared_experts == 0) return;
  Shared(problem).Backward(x, dy, 1.0, dx, grads.shared_gate_up_2SD.data(),
                           grads.shared_down_DS.data());
}

}  // namespace

std::vector<MoeTensors::Entry> MoeTensors::entries() {
  return {{"x", &x_TD},
          {"gate", &gate_ED},
          {"gate_up", &gate_up_E2FD},
          {"down", &down_EDF},
          {"shared_gate_up", &shared_gate_up_2SD},
          {"shared_down", &shared_down_DS}};
}

int64_t MoeProblem::num_valid() const {
  if (valid_T.empty()) return num_tokens;
  return static_cast<int64_t>(std::count(valid_T.begin(), valid_T.end(), 1));
}

MoeProblem RandomProblem(const MoeOptions& options, int64_t num_tokens, uint64_t seed) {
  int64_t d = options.hidden_size, f = options.expert_size, e = options.num_experts;
  int64_t s = options.num_shared_experts * f;
  MoeProblem problem;
  problem.options = options;
  problem.num_tokens = num_tokens;
  problem.tensors = {.x_TD = Draw(seed, "x", num_tokens * d, 1.0),
                     .gate_ED = Draw(seed, "gate", e * d, 0.5),
                     .gate_up_E2FD = Draw(seed, "gate_up", e * 2 * f * d, 0.3),
                     .down_EDF = Draw(seed, "down", e * d * f, 0.3),
                     .shared_gate_up_2SD = Draw(seed, "shared_gate_up", 2 * s * d, 0.3),
                     .shared_down_DS = Draw(seed, "shared_down", d * s, 0.3)};
  if (IsSigmoid(options)) problem.bias_E = Draw(seed, "bias", e, 0.2);
  return problem;
}

MoeForward Forward(const MoeProblem& problem) {
  const MoeOptions& options = problem.options;
  size_t t_count = static_cast<size_t>(problem.num_tokens);
  size_t num_experts = static_cast<size_t>(options.num_experts);
  size_t k = static_cast<size_t>(options.top_k), d = static_cast<size_t>(options.hidden_size);
  MoeForward out;
  for (Vector* table : {&out.logits_TE, &out.scores_TE, &out.probs_TE}) {
    table->assign(t_count * num_experts, 0.0);
  }
  out.weights_TK.assign(t_count * k, 0.0);
  out.ids_TK.assign(t_count * k, 0);
  out.kept_TK.assign(t_count * k, false);
  out.y_TD.assign(t_count * d, 0.0);
  out.routed_E.assign(num_experts, 0);
  out.kept_E.assign(num_experts, 0);
  for (int64_t t = 0; t < problem.num_tokens; ++t) RouteToken(problem, t, out);
  Count(problem, out);
  AddLosses(problem, out);
  for (int64_t t = 0; t < problem.num_tokens; ++t) {
    const double* x = Row(problem.tensors.x_TD, t, options.hidden_size);
    double* y = Row(out.y_TD, t, options.hidden_size);
    for (int64_t i = t * options.top_k; i < (t + 1) * options.top_k; ++i) {
      if (!out.kept_TK[i]) continue;
      AddScaled(out.weights_TK[i], Expert(problem, out.ids_TK[i]).Output(x).data(), y,
                options.hidden_size);
    }
    if (options.num_shared_experts == 0) continue;
    AddScaled(1.0, Shared(problem).Output(x).data(), y, options.hidden_size);
  }
  return out;
}

MoeTensors Backward(const MoeProblem& problem, const MoeForward& forward, const Vector& dy_TD) {
  MoeTensors grads = problem.tensors;
  for (const MoeTensors::Entry& entry : grads.entries()) {
    std::fill(entry.values->begin(), entry.values->end(), 0.0);
  }
  for (int64_t t = 0; t < problem.num_tokens; ++t) {
    BackwardToken(problem, forward, t, Row(dy_TD, t, problem.options.hidden_size), grads);
  }
  return grads;
}

}  // namespace meshfold::reference
