#include "moe/moe_layer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/autograd/ops.h"
#include "core/base/status_macros.h"
#include "moe/balance.h"
#include "moe/host_copy.h"

namespace meshfold::moe {
namespace {

MoeOptions Validated(const MoeOptions& options) {
  ThrowIfError(Validate(options));
  return options;
}

std::unique_ptr<Router> MakeRouter(const std::string& name, const MoeOptions& options) {
  return ValueOrThrow(ValueOrThrow(RouterRegistry().Find(options.router))(name, options));
}

std::unique_ptr<Dispatcher> MakeDispatcher(const MoeOptions& options) {
  DispatcherFactory make = ValueOrThrow(DispatcherRegistry().Find(options.dispatcher));
  return ValueOrThrow(make({.num_experts = options.num_experts}));
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
      dispatcher_(MakeDispatcher(options)),
      count_exchange_(MakeLocalCountExchange()),
      experts_(name, options),
      shared_experts_(MakeSharedExperts(name, options)) {}

void MoeLayer::VisitParameters(ParameterVisitor visit) {
  router_->VisitParameters(visit);
  experts_.VisitParameters(visit);
  if (shared_experts_ != nullptr) shared_experts_->VisitParameters(visit);
}

Variable MoeLayer::Forward(const Variable& x_TD, StepContext& context) {
  const Tensor& valid_T = context.batch().valid;
  Routing routing = router_->Route(x_TD, context);
  SortedTokens sorted = SortTokens(routing.ids_TK, valid_T, options_.num_experts);
  SharedCounts counts = count_exchange_->Share(sorted.routed_E);
  Losses losses = ComputeLosses(routing, sorted, counts, context);
  ApplyCapacity(routing.ids_TK, context, sorted, counts);
  context.AddExpertCounts({.layer = name_, .routed = sorted.routed, .kept = sorted.kept});

  ExpertPlan plan = ValueOrThrow(planner_({.counts_RE = counts.group_RE}));
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
                                         const SharedCounts& counts,
                                         const StepContext& context) const {
  if (!context.options().training) return {};
  const Tensor& valid_T = context.batch().valid;
  double weight = context.options().token_weight;
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

void MoeLayer::ApplyCapacity(const Tensor& ids_TK, const StepContext& context, SortedTokens& sorted,
                             SharedCounts& counts) const {
  if (options_.capacity_factor == 0 || !context.options().training) return;
  if (counts.micro_batch_E != sorted.routed_E) {
    // Which rows are kept depends on the tokens of other ranks then.
    throw StatusError(absl::UnimplementedError(
        absl::StrCat("[MoeLayer] ", name_, ": capacity_factor ", options_.capacity_factor,
                     " needs all tokens of a micro-batch on one rank")));
  }
  int64_t capacity =
      Capacity(options_.capacity_factor, sorted.num_tokens, options_.top_k, options_.num_experts);
  DropBeyondCapacity(ids_TK, context.batch().valid, capacity, sorted);
  counts.group_RE = {sorted.kept_E};
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
