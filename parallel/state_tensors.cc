#include "parallel/state_tensors.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/backend/backend.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "parallel/sharding.h"

namespace meshfold::parallel {
namespace {

absl::Status Check(const StateTensor& state) {
  if (state.parameter == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("[Checkpoint] '", state.name, "' belongs to no parameter"));
  }
  const Parameter& parameter = *state.parameter;
  if (!state.tensor.defined() || state.tensor.shape() == parameter.part.shape()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "[Checkpoint] '", state.name, "' has shape ", state.tensor.shape().ToString(), ", its part ",
      parameter.part.ToString(), " of ", parameter.shape.ToString(), " another one"));
}

}  // namespace

absl::StatusOr<std::vector<StateTensor>> StateTensorsOf(Module& model,
                                                        optim::Optimizer* optimizer) {
  std::vector<StateTensor> tensors;
  model.VisitParameters([&](Parameter& parameter) {
    tensors.push_back(
        {absl::StrCat(kModelPrefix, parameter.name), parameter.value.data(), &parameter});
  });
  std::map<absl::string_view, const Parameter*> parameters;
  if (optimizer != nullptr) {
    for (const Parameter* parameter : optimizer->parameters()) {
      parameters[parameter->name] = parameter;
    }
    optimizer->VisitState([&](const std::string& name, const Tensor& tensor) {
      auto it = parameters.find(absl::string_view(name).substr(name.find('/') + 1));
      tensors.push_back({absl::StrCat(kOptimizerPrefix, name), tensor,
                         it != parameters.end() ? it->second : nullptr});
    });
  }
  for (const StateTensor& state : tensors) MF_RETURN_IF_ERROR(Check(state));
  return tensors;
}

Tensor ToHost(const Tensor& tensor) {
  if (tensor.device() == DeviceKind::kHost) return tensor;
  Tensor dense = tensor;
  if (!tensor.IsContiguous()) {
    dense = Tensor::Contiguous(tensor.shape(), tensor.dtype());
    CurrentBackend().Copy(tensor, dense);
  }
  Tensor host = Tensor::Contiguous(tensor.shape(), tensor.dtype(), SystemHostAllocator());
  AwaitOnHost(*CurrentBackend().CopyToHost(dense, host.raw()));
  return host;
}

bool IsFirstStage(const Parameter& parameter, int64_t stage) {
  const std::vector<int>& stages = parameter.stages;
  return stage == (stages.empty() ? 0 : *std::min_element(stages.begin(), stages.end()));
}

absl::Status CheckPartOf(const Parameter& parameter, const ShardingContext& sharding) {
  MF_ASSIGN_OR_RETURN(const Box box, LocalBox(parameter.shape, parameter.layout, sharding.ranks,
                                              sharding.world.rank()));
  if (box == parameter.part) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("is the part ", parameter.part.ToString(),
                                                 ", its layout says ", box.ToString(), " of ",
                                                 parameter.shape.ToString()));
}

}  // namespace meshfold::parallel
