// Router: from activations to chosen experts and their weights. One file in moe/routers a router.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/base/registry.h"
#include "core/nn/layers.h"
#include "core/nn/module.h"
#include "moe/options.h"
#include "moe/routing.h"

namespace meshfold::moe {

// The gate is a LinearLayer <name>.gate without bias, weight f32 [E, D]: keep it f32 whatever the
// model's dtype, since rounded logits flip choices.
class Router {
 public:
  Router(const std::string& name, const MoeOptions& options);
  virtual ~Router() = default;

  // x_TD f32 [T, D]. Routes padding tokens too (whoever sorts leaves them out). Local; throws
  // StatusError.
  virtual Routing Route(const Variable& x_TD, StepContext& context) = 0;

  virtual void VisitParameters(ParameterVisitor visit) { gate_.VisitParameters(visit); }

  // After the optimizer step: load_E are the rows routed to each expert over the step's global
  // batch, before drops and without padding. Runs outside the graph, equally on all ranks.
  virtual void OnStepEnd(absl::Span<const int64_t> load_E) { (void)load_E; }

 protected:
  const MoeOptions& options() const { return options_; }
  LinearLayer& gate() { return gate_; }
  // The k best experts of each row of scores_TE + bias_E (undefined: none), i32 [T, K].
  Tensor Select(const Tensor& scores_TE, const Tensor& bias_E) const;
  // Weights of the chosen ones: scores at ids_TK, divided by their sum + eps if options say
  // renormalize, times routed_scaling.
  Variable WeightsOf(const Variable& scores_TE, const Tensor& ids_TK, double eps) const;

 private:
  MoeOptions options_;
  LinearLayer gate_;
};

// `options` have been validated. InvalidArgument for options that the router has no meaning for.
using RouterFactory = absl::StatusOr<std::unique_ptr<Router>> (*)(const std::string& name,
                                                                  const MoeOptions& options);
Registry<RouterFactory>& RouterRegistry();

}  // namespace meshfold::moe
