// Sigmoid scores, chosen inside the best groups by score + bias, where the bias alone balances the
// load (DeepSeek V3: "noaux_tc").
//
// The bias steers which experts are chosen and never enters the weights, so it needs no gradient:
// after each step it moves by a fixed amount towards equal load. DeepSeek-AI 2024, section 2.1.2;
// Wang et al. 2024 (auxiliary-loss-free load balancing).
#include <memory>
#include <vector>

#include "core/autograd/ops.h"
#include "core/backend/backend.h"
#include "moe/balance.h"
#include "moe/host_copy.h"
#include "moe/router.h"

namespace meshfold::moe {
namespace {

// Keeps a sum of scores that all vanished from dividing by zero.
constexpr double kEps = 1e-20;

class SigmoidGroupBiasRouter : public Router {
 public:
  SigmoidGroupBiasRouter(const std::string& name, const MoeOptions& options)
      : Router(name, options),
        bias_(MakeParameter(name + ".gate.score_correction_bias", {options.num_experts},
                            {InitSpec::Kind::kConstant, 0.0}, /*decay=*/false)) {
    bias_.trained = false;
    bias_.value.set_requires_grad(false);
  }

  Routing Route(const Variable& x_TD, StepContext& context) override {
    Routing routing;
    routing.logits_TE = gate()(x_TD, context);
    Variable scores_TE = Sigmoid(routing.logits_TE);
    routing.ids_TK = Select(scores_TE.data(), bias_.value.data());
    routing.weights_TK = WeightsOf(scores_TE, routing.ids_TK, kEps);
    if (options().aux_loss_coefficient > 0) {
      routing.scores_TE = NormalizeRows(scores_TE, kEps, /*scale=*/1.0);
    }
    return routing;
  }

  void VisitParameters(ParameterVisitor visit) override {
    Router::VisitParameters(visit);
    visit(bias_);
  }

  void OnStepEnd(absl::Span<const int64_t> load_E) override {
    if (options().bias_update_rate == 0) return;
    const Tensor& bias_E = bias_.value.data();
    CurrentBackend().Add(bias_E, Upload(BiasSteps(load_E, options().bias_update_rate)), bias_E);
    bias_.value.BumpVersion();
  }

 private:
  Parameter bias_;  // f32 [E]
};

absl::StatusOr<std::unique_ptr<Router>> Make(const std::string& name, const MoeOptions& options) {
  return std::make_unique<SigmoidGroupBiasRouter>(name, options);
}

MF_REGISTER(RouterRegistry(), "sigmoid_group_bias", Make);

}  // namespace
}  // namespace meshfold::moe
