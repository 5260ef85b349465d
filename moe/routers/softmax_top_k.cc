// Softmax over all experts, then the k best of it (Mixtral, Qwen3-MoE, OLMoE).
//
// With renormalize the weights sum to 1 and only chosen logits get a gradient; without it each is a
// probability among all E, so that every logit gets one, also with K = 1.
// Shazeer et al. 2017; Fedus et al. 2021 (top-1 without renormalisation).
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/autograd/ops.h"
#include "moe/router.h"

namespace meshfold::moe {
namespace {

class SoftmaxTopKRouter : public Router {
 public:
  using Router::Router;

  Routing Route(const Variable& x_TD, StepContext& context) override {
    Routing routing;
    routing.logits_TE = gate()(x_TD, context);
    Variable probabilities_TE = Softmax(routing.logits_TE);
    routing.ids_TK = Select(probabilities_TE.data(), Tensor());
    routing.weights_TK = WeightsOf(probabilities_TE, routing.ids_TK, /*eps=*/0.0);
    if (options().aux_loss_coefficient > 0) routing.scores_TE = probabilities_TE;
    return routing;
  }
};

absl::StatusOr<std::unique_ptr<Router>> Make(const std::string& name, const MoeOptions& options) {
  if (options.bias_update_rate > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("[softmax_top_k] bias_update_rate is ", options.bias_update_rate,
                     "; this router has no balancing bias: set 0 or take sigmoid_group_bias"));
  }
  if (options.num_groups > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("[softmax_top_k] num_groups is ", options.num_groups,
                     "; this router chooses among all experts: set 1 or take sigmoid_group_bias"));
  }
  return std::make_unique<SoftmaxTopKRouter>(name, options);
}

MF_REGISTER(RouterRegistry(), "softmax_top_k", Make);

}  // namespace
}  // namespace meshfold::moe
