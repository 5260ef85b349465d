// The mixture-of-experts layer: router, plan, dispatch, experts, combine, shared experts, losses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/nn/mlp.h"
#include "core/nn/module.h"
#include "moe/count_exchange.h"
#include "moe/dispatcher.h"
#include "moe/expert_plan.h"
#include "moe/experts.h"
#include "moe/options.h"
#include "moe/router.h"

namespace meshfold::moe {

// y_TD = sum over chosen e of w_te Expert_e(x_t) + Shared(x_t). A token without rows (padding, all
// copies dropped) gets Shared alone, or zeros: its residual path carries it on.
//
// Parameters <name>.gate.weight, <name>.experts.{gate_up,down} and, where asked for,
// <name>.gate.score_correction_bias and <name>.shared_experts.{gate_up,down}.weight.
//
// Over the ranks of a pipeline stage each token goes through the layer once: x_TD are this rank's
// rows of the context's batch (set_token_part), T all of them on one rank.
//
// In training it attaches, weighted with StepContext token_weight and this rank's share of the
// batch's tokens, so that the micro-batches and ranks of a step add up to means over its tokens:
//   "aux_loss"  coefficient * E * sum_e f_e P_e (moe/balance.h),
//   "z_loss"    coefficient * mean over tokens of logsumexp(logits_t)^2 (Zoph et al. 2022, eq. 5),
// and in every mode it adds ExpertCounts under <name>. Padding tokens count in none of them.
//
// VisitModules shows the layer alone: how its insides are spread is the expert axis's business.
class MoeLayer : public Module {
 public:
  // StatusError: InvalidArgument from Validate or the router, NotFound for unknown names.
  MoeLayer(const std::string& name, const MoeOptions& options);

  void VisitParameters(ParameterVisitor visit) override;

  // Moves the balancing bias by the load of the step's micro-batches on all ranks. Collective where
  // the options have a bias_update_rate.
  void OnStepEnd(absl::Span<const std::unique_ptr<StepContext>> contexts) override;

  // For axes.
  const std::string& name() const { return name_; }
  const MoeOptions& options() const { return options_; }
  Router& router() { return *router_; }
  RoutedExperts& experts() { return experts_; }
  SwiGluMlp* shared_experts() { return shared_experts_.get(); }  // null without
  void set_dispatcher(std::unique_ptr<Dispatcher> dispatcher) {
    dispatcher_ = std::move(dispatcher);
  }
  void set_count_exchange(std::unique_ptr<CountExchange> exchange) {
    count_exchange_ = std::move(exchange);
  }
  // The input is part `part` of `num_parts` (parallel::PartOf) of the rows of context.batch().
  void set_token_part(int64_t part, int64_t num_parts) {
    part_ = part;
    num_parts_ = num_parts;
  }

 protected:
  Variable Forward(const Variable& x_TD, StepContext& context) override;

 private:
  // This rank's rows of the batch's `valid`, undefined without padding. InvalidArgument, with both
  // numbers, when x_TD has other rows.
  Tensor ValidOf(const Variable& x_TD, const StepContext& context) const;

  // Losses of one micro-batch, undefined where their coefficient is 0.
  struct Losses {
    Variable aux, z;
  };
  Losses ComputeLosses(const Routing& routing, const SortedTokens& sorted,
                       const SharedCounts& counts, const Tensor& valid_T,
                       const StepContext& context) const;
  // Drops rows beyond the capacity, if there is one; counts.group_RE is then what is kept.
  void ApplyCapacity(const Tensor& ids_TK, const Tensor& valid_T, SortedTokens& sorted,
                     SharedCounts& counts) const;
  Variable RunExperts(const Variable& x_TD, const DispatchInput& input, StepContext& context);

  std::string name_;
  MoeOptions options_;
  std::unique_ptr<Router> router_;
  Planner planner_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::unique_ptr<CountExchange> count_exchange_;
  RoutedExperts experts_;
  std::unique_ptr<SwiGluMlp> shared_experts_;
  int64_t part_ = 0, num_parts_ = 1;
};

}  // namespace meshfold::moe
