// The axis "expert": experts spread over the ranks of a stage, and each expert's hidden width over
// neighbours (expert tensor parallelism).
//
// Each token goes through a MoE layer once over the ranks of a stage. Under tensor parallelism
// those that share its micro-batch take parts of it: with sequence parallelism the layer's input is
// cut already, without it the layer gets boundaries that cut and join. Gate and shared experts are
// the same on all ranks, so their gradients are partial over "tp"; experts are held by
// ep x etp ranks, so theirs are partial over "edp". Gradients over "dp" are the data axis's
// business.
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "moe/moe_layer.h"
#include "parallel/axis.h"
#include "parallel/collective_ops.h"

namespace meshfold::moe {
namespace {

using parallel::AxisInput;
using parallel::Group;

absl::Status CheckDivides(const MoeLayer& layer, const char* key, int64_t parts, const char* what,
                          int64_t size) {
  if (size % parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("[Expert axis] ", layer.name(), ": parallel.", key,
                                                 " ", parts, " does not divide ", what, " ", size));
}

absl::Status SpreadExperts(MoeLayer& layer, const parallel::RankLayout& ranks) {
  const int64_t ep = ranks.expert.size("ep"), etp = ranks.expert.size("etp");
  MF_RETURN_IF_ERROR(CheckDivides(layer, "expert", ep, "num_experts", layer.options().num_experts));
  MF_RETURN_IF_ERROR(
      CheckDivides(layer, "expert_tensor", etp, "expert_size", layer.options().expert_size));
  for (Parameter* parameter : {&layer.experts().gate_up(), &layer.experts().down()}) {
    // Both have experts first and their hidden width as dim 2.
    parameter->layout = {.view = "expert",
                         .placements = {{.axis = "ep", .dim = 0, .parts = ep},
                                        {.axis = "etp", .dim = 2, .parts = etp}}};
    parameter->grad_layout = {.view = "expert",
                              .placements = {{.axis = "edp", .kind = Placement::Kind::kPartial}}};
  }
  return absl::OkStatus();
}

absl::Status InstallExchange(MoeLayer& layer, const parallel::Meshes& meshes) {
  const MoeOptions& options = layer.options();
  const Group& expert = meshes.expert.group("ep_etp").communicator;
  MF_ASSIGN_OR_RETURN(
      std::unique_ptr<Dispatcher> dispatcher,
      MakeDispatcher(options.dispatcher, {.num_experts = options.num_experts,
                                          .group = expert,
                                          .expert_tensor = meshes.ranks.expert.size("etp")}));
  layer.set_dispatcher(std::move(dispatcher));
  layer.set_count_exchange(
      MakeGroupCountExchange({.expert = expert,
                              .micro_batch = meshes.dense.group("dp_tp").communicator,
                              .sums = options.aux_loss_coefficient > 0,
                              .ranks = options.capacity_factor > 0}));
  return absl::OkStatus();
}

void CutTokens(MoeLayer& layer, const Group& tp, bool cut_before) {
  if (tp->size() == 1) return;
  layer.set_token_part(tp->rank(), tp->size());
  const auto is_partial = [](Parameter& parameter) {
    if (!parameter.trained) return;
    parameter.grad_layout.placements.push_back({.axis = "tp", .kind = Placement::Kind::kPartial});
  };
  layer.router().VisitParameters(is_partial);
  if (layer.shared_experts() != nullptr) layer.shared_experts()->VisitParameters(is_partial);
  if (cut_before) return;
  layer.set_pre_boundary(
      [tp](const Variable& x, StepContext&) { return parallel::SliceRows(x, tp); });
  layer.set_post_boundary([tp](const Variable& y, StepContext& context) {
    return parallel::UnsliceRows(y, context.batch().num_tokens(), tp);
  });
}

absl::Status Apply(const AxisInput& input) {
  if (input.meshes.dense.group("dp_tp").size() == 1) return absl::OkStatus();
  const Group& tp = input.meshes.dense.group("tp").communicator;
  absl::Status status;
  input.layers.VisitModules([&](Module& module) {
    auto* layer = dynamic_cast<MoeLayer*>(&module);
    if (layer == nullptr || !status.ok()) return;
    status = SpreadExperts(*layer, input.meshes.ranks);
    if (status.ok()) status = InstallExchange(*layer, input.meshes);
    if (status.ok()) CutTokens(*layer, tp, input.options.sequence);
  });
  return status;
}

MF_REGISTER(parallel::AxisRegistry(), "expert", parallel::Axis{.order = 20, .apply = Apply});

}  // namespace
}  // namespace meshfold::moe
