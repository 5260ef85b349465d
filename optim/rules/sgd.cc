// Stochastic gradient descent with optional momentum, as torch.optim.SGD without dampening, and
// decoupled weight decay. Sutskever et al. 2013.
#include <memory>
#include <string>
#include <vector>

#include "core/backend/backend.h"
#include "core/base/status_macros.h"
#include "optim/update_rule.h"

namespace meshfold::optim {
namespace {

class Sgd : public UpdateRule {
 public:
  explicit Sgd(const RuleOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override {
    if (options_.momentum == 0.0) return {};
    return {"momentum"};
  }

  void Apply(const Update& update) const override {
    CurrentBackend().Sgd({.param = update.param,
                          .master = update.master,
                          .grad = update.grad,
                          .momentum_buffer = update.state.empty() ? Tensor() : update.state[0],
                          .grad_scale = update.grad_scale,
                          .lr = update.lr,
                          .momentum = options_.momentum,
                          .weight_decay = update.weight_decay});
  }

 private:
  RuleOptions options_;
};

absl::StatusOr<std::unique_ptr<UpdateRule>> Make(const RuleOptions& options) {
  MF_RETURN_IF_ERROR(CheckFraction("momentum", options.momentum));
  return std::make_unique<Sgd>(options);
}

MF_REGISTER(UpdateRuleRegistry(), "sgd", Make);

}  // namespace
}  // namespace meshfold::optim
