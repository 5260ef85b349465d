#include "moe/router.h"

#include "core/autograd/ops.h"
#include "core/backend/backend.h"

namespace meshfold::moe {

Registry<RouterFactory>& RouterRegistry() {
  static auto* registry = new Registry<RouterFactory>("router");
  return *registry;
}

Router::Router(const std::string& name, const MoeOptions& options)
    : options_(options),
      gate_(name + ".gate", {.in = options.hidden_size,
                             .out = options.num_experts,
                             .init_stddev = options.init_stddev}) {}

Tensor Router::Select(const Tensor& scores_TE, const Tensor& bias_E) const {
  Tensor ids_TK = Tensor::Empty({scores_TE.dim(0), options_.top_k}, DType::kI32);
  CurrentBackend().SelectExperts({.scores = scores_TE,
                                  .bias = bias_E,
                                  .num_groups = options_.num_groups,
                                  .top_k_groups = options_.top_k_groups,
                                  .ids = ids_TK});
  return ids_TK;
}

Variable Router::WeightsOf(const Variable& scores_TE, const Tensor& ids_TK, double eps) const {
  Variable chosen_TK = GatherCols(scores_TE, ids_TK);
  if (options_.renormalize) return NormalizeRows(chosen_TK, eps, options_.routed_scaling);
  if (options_.routed_scaling == 1.0) return chosen_TK;
  return Scale(chosen_TK, options_.routed_scaling);
}

}  // namespace meshfold::moe
