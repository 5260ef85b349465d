// Adam with decoupled weight decay. Loshchilov and Hutter 2019, algorithm 2; as torch.optim.AdamW.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/status_macros.h"
#include "optim/update_rule.h"

namespace meshfold::optim {
namespace {

class AdamW : public UpdateRule {
 public:
  explicit AdamW(const RuleOptions& options) : options_(options) {}

  std::vector<std::string> state_names() const override { return {"m", "v"}; }

  void Apply(const Update& update) const override {
    CurrentBackend().AdamW({.param = update.param,
                            .master = update.master,
                            .grad = update.grad,
                            .m = update.state[0],
                            .v = update.state[1],
                            .grad_scale = update.grad_scale,
                            .lr = update.lr,
                            .beta1 = options_.beta1,
                            .beta2 = options_.beta2,
                            .eps = options_.eps,
                            .weight_decay = update.weight_decay,
                            .step = update.step});
  }

 private:
  RuleOptions options_;
};

absl::StatusOr<std::unique_ptr<UpdateRule>> Make(const RuleOptions& options) {
  MF_RETURN_IF_ERROR(CheckFraction("beta1", options.beta1));
  MF_RETURN_IF_ERROR(CheckFraction("beta2", options.beta2));
  if (!(options.eps >= 0) || !std::isfinite(options.eps)) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Optimizer] eps ", options.eps, " must be 0 or more"));
  }
  return std::make_unique<AdamW>(options);
}

MF_REGISTER(UpdateRuleRegistry(), "adamw", Make);

}  // namespace
}  // namespace meshfold::optim
