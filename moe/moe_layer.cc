#include "moe/moe_layer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/ops.h"
#include "core/base/status_macros.h"
#include "moe/balance.h"
#include "moe/host_copy.h"
#include "parallel/sharding.h"

namespace meshfold::moe {
namespace {

MoeOptions Validated(const MoeOptions& options) {
  ThrowIfError(Validate(options));
  return options;
}

std::unique_ptr<Router> MakeRouter(const std::string& name, const MoeOptions& options) {
  return ValueOrThrow(ValueOrThrow(RouterRegistry().Find(options.router))(name, options));
}

// What a loss weighs that is a mean over `num_tokens` of the batch's tokens.
double WeightOf(int64_t num_tokens, const StepContext& context) {
  const int64_t all = context.batch().num_tokens() - context.batch().num_padding;
  if (num_tokens == all) return context.options().token_weight;
  return context.options().token_weight * static_cast<double>(num_tokens) /
         static_cast<double>(all);
}

std::unique_ptr<SwiGluMlp> MakeSharedExperts(const std::string& name, const MoeOptions& options) {
  if (options.num_shared_experts == 0) return nullptr;
  return std::make_unique<SwiGluMlp>(
      name + ".shared_experts",
      SwiGluMlp::Options{.hidden_size = options.hidden_size,
                         .intermediate_size = options.num_shared_experts * options.expert_size,
                         .init_stddev = options.init_stddev});
}

}  // namespace

MoeLayer::MoeLayer(const std::string& name, const MoeOptions& options)
    : name_(name),
      options_(Validated(options)),
      router_(MakeRouter(name, options)),
      planner_(ValueOrThrow(PlannerRegistry().Find(options.planner))),
      dispatcher_(
          ValueOrThrow(MakeDispatcher(options.dispatcher, {.num_experts = options.num_experts}))),
      count_exchange_(MakeLocalCountExchange()),
      experts_(name, options),
      shared_experts_(MakeSharedExperts(name, options)) {}

void MoeLayer::VisitParameters(ParameterVisitor visit) {
  router_->VisitParameters(visit);
  experts_.VisitParameters(visit);
  if (shared_experts_ != nullptr) shared_experts_->VisitParameters(visit);
}

Tensor MoeLayer::ValidOf(const Variable& x_TD, const StepContext& context) const {
  const PackedBatch& batch = context.batch();
  const parallel::Interval part = parallel::PartOf(batch.num_tokens(), num_parts_, part_);
  if (x_TD.shape()[0] != part.count) {
    ThrowInvalidArgument(absl::StrCat("[MoeLayer] ", name_, ": ", x_TD.shape()[0],
                                      " tokens came in, part ", part_, " of ", num_parts_, " of ",
                                      batch.num_tokens(), " are ", part.count));
  }
  return batch.valid.defined() ? batch.valid.Narrow(part.begin, part.count) : Tensor();
}

Variable MoeLayer::Forward(const Variable& x_TD, StepContext& context) {
  const Tensor valid_T = ValidOf(x_TD, context);
  Routing routing = router_->Route(x_TD, context);
  SortedTokens sorted = SortTokens(routing.ids_TK, valid_T, options_.num_experts);
  SharedCounts counts = count_exchange_->Share(sorted.routed_E);
  Losses losses = ComputeLosses(routing, sorted, counts, valid_T, context);
  if (context.options().training) ApplyCapacity(routing.ids_TK, valid_T, sorted, counts);
  context.AddExpertCounts({.layer = name_, .routed = sorted.routed, .kept = sorted.kept});

  ExpertPlan plan = ValueOrThrow(
      planner_({.counts_RE = counts.group_RE, .num_targets = dispatcher_->num_targets()}));
  Variable y_TD = RunExperts(
      x_TD, {.x_TD = x_TD, .weights_TK = routing.weights_TK, .sorted = sorted, .plan = plan},
      context);
  if (losses.aux.defined()) y_TD = context.AttachLoss(y_TD, "aux_loss", losses.aux);
  if (losses.z.defined()) y_TD = context.AttachLoss(y_TD, "z_loss", losses.z);
  return y_TD;
}

Variable MoeLayer::RunExperts(const Variable& x_TD, const DispatchInput& input,
                              StepContext& context) {
  std::unique_ptr<Dispatch> dispatch = dispatcher_->DispatchStart(input);
  // Rows travel meanwhile.
  Variable shared_TD = shared_experts_ != nullptr ? (*shared_experts_)(x_TD, context) : Variable();
  dispatch->CombineStart(experts_.Compute(dispatch->DispatchFinish()));
  Variable y_TD = dispatch->CombineFinish();
  return shared_TD.defined() ? Add(y_TD, shared_TD) : y_TD;
}

MoeLayer::Losses MoeLayer::ComputeLosses(const Routing& routing, const SortedTokens& sorted,
                                         const SharedCounts& counts, const Tensor& valid_T,
                                         const StepContext& context) const {
  if (!context.options().training) return {};
  double weight = WeightOf(sorted.num_tokens, context);
  Losses losses;
  if (options_.aux_loss_coefficient > 0) {
    std::vector<float> coefficients_E = BalanceCoefficients(counts.micro_batch_E, sorted.num_tokens,
                                                            options_.aux_loss_coefficient * weight);
    losses.aux = WeightedSum(routing.scores_TE, Upload(coefficients_E), valid_T);
  }
  if (options_.z_loss_coefficient > 0) {
    double per_token = sorted.num_tokens == 0 ? 0.0 : weight / sorted.num_tokens;
    losses.z =
        SquaredLogSumExp(routing.logits_TE, options_.z_loss_coefficient * per_token, valid_T);
  }
  return losses;
}

void MoeLayer::ApplyCapacity(const Tensor& ids_TK, const Tensor& valid_T, SortedTokens& sorted,
                             SharedCounts& counts) const {
  if (options_.capacity_factor == 0) return;
  if (counts.ranks_RE.empty()) {
    // Which rows are kept depends on the tokens of other ranks.
    throw StatusError(absl::UnimplementedError(
        absl::StrCat("[MoeLayer] ", name_, ": capacity_factor ", options_.capacity_factor,
                     " needs the counts of every rank, which its count exchange does not tell")));
  }
  int64_t num_rows = 0;  // of the micro-batch, all ranks
  for (int64_t count : counts.micro_batch_E) num_rows += count;
  const int64_t capacity = Capacity(options_.capacity_factor, num_rows / options_.top_k,
                                    options_.top_k, options_.num_experts);
  const std::vector<std::vector<int64_t>> kept_RE = KeptRows(counts.ranks_RE, capacity);
  const auto begin = kept_RE.begin() + counts.group_begin;
  counts.group_RE.assign(begin, begin + static_cast<int64_t>(counts.group_RE.size()));
  LimitRows(ids_TK, valid_T, kept_RE[static_cast<size_t>(counts.rank)], sorted);
}

void MoeLayer::OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) {
  if (options_.bias_update_rate == 0) return;
  std::vector<int64_t> load_E(static_cast<size_t>(options_.num_experts), 0);
  for (const std::unique_ptr<StepContext>& context : contexts) {
    for (const ExpertCounts& counts : context->expert_counts()) {
      if (counts.layer != name_) continue;
      std::vector<int64_t> routed_E = ReadOnHost(counts.routed);
      for (size_t e = 0; e < load_E.size(); ++e) load_E[e] += routed_E[e];
    }
  }
  router_->OnStepEnd(count_exchange_->SumOverRanks(std::move(load_E)));
}

}  // namespace meshfold::moe
