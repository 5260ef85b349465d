// Data parallelism: ranks see different tokens, so the gradient of every parameter that they all
// hold is a sum over them. Parameters of the expert view have axes of their own.
#include "parallel/axis.h"

namespace meshfold::parallel {
namespace {

absl::Status Apply(const AxisInput& input) {
  input.layers.VisitParameters([](Parameter& parameter) {
    if (parameter.layout.view != "dense") return;
    for (const char* axis : {"dp", "cp", "ulysses"}) {
      parameter.grad_layout.placements.push_back({.axis = axis, .kind = Placement::Kind::kPartial});
    }
  });
  return absl::OkStatus();
}

MF_REGISTER(AxisRegistry(), "data", Axis{.order = 90, .apply = Apply});

}  // namespace
}  // namespace meshfold::parallel
