#include "parallel/train_state.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/nn/init.h"
#include "core/tensor/allocator.h"

namespace meshfold::parallel {
namespace {

constexpr char kModelPrefix[] = "model/";
constexpr char kOptimizerPrefix[] = "optimizer/";
constexpr char kNumStepsName[] = "optimizer/num_steps";

// Every tensor of the model and the optimizer (or of the model alone) under its name in the
// checkpoint. All parameters have values.
std::vector<NamedTensor> TensorsOf(Module& model, optim::Optimizer* optimizer) {
  std::vector<NamedTensor> tensors;
  model.VisitParameters([&](Parameter& parameter) {
    tensors.push_back({absl::StrCat(kModelPrefix, parameter.name), parameter.value.data()});
  });
  if (optimizer != nullptr) {
    optimizer->VisitState([&](const std::string& name, const Tensor& tensor) {
      tensors.push_back({absl::StrCat(kOptimizerPrefix, name), tensor});
    });
  }
  return tensors;
}

// The tensor itself when it is on the host, else a copy there.
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

absl::Status ReadTensor(const Checkpoint& checkpoint, const NamedTensor& named) {
  const Tensor& dst = named.tensor;
  if (dst.device() == DeviceKind::kHost) return checkpoint.Read(named.name, dst);
  Tensor host = Tensor::Contiguous(dst.shape(), dst.dtype(), SystemHostAllocator());
  MF_RETURN_IF_ERROR(checkpoint.Read(named.name, host));
  Tensor dense = dst.IsContiguous() ? dst : Tensor::Contiguous(dst.shape(), dst.dtype());
  AwaitOnHost(*CurrentBackend().CopyFromHost(host.raw(), dense));
  if (!dst.IsContiguous()) CurrentBackend().Copy(dense, dst);
  return absl::OkStatus();
}

// Shapes that the checkpoint must have, by name.
std::map<std::string, Shape> WantedShapes(Module& model, optim::Optimizer* optimizer) {
  std::map<std::string, Shape> wanted;
  model.VisitParameters([&](Parameter& parameter) {
    const Tensor& data = parameter.value.data();
    wanted[absl::StrCat(kModelPrefix, parameter.name)] =
        data.defined() ? data.shape() : parameter.shape;
  });
  if (optimizer != nullptr) {
    optimizer->VisitState([&](const std::string& name, const Tensor& tensor) {
      wanted[absl::StrCat(kOptimizerPrefix, name)] = tensor.shape();
    });
  }
  return wanted;
}

// "; <what>: a, b and 5 more", or nothing.
std::string Listed(absl::string_view what, std::vector<std::string> items) {
  constexpr size_t kMaxListed = 8;
  if (items.empty()) return "";
  const size_t more = items.size() > kMaxListed ? items.size() - kMaxListed : 0;
  items.resize(items.size() - more);
  return absl::StrCat("; ", what, ": ", absl::StrJoin(items, ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

absl::Status CheckFits(const Checkpoint& checkpoint, const std::map<std::string, Shape>& wanted,
                       bool with_optimizer) {
  std::vector<std::string> missing, unexpected, shapes;
  for (const auto& [name, shape] : wanted) {
    auto it = checkpoint.tensors().find(name);
    if (it == checkpoint.tensors().end()) {
      missing.push_back(name);
    } else if (it->second.shape != shape) {
      shapes.push_back(absl::StrCat(name, " ", it->second.shape.ToString(), " where ",
                                    shape.ToString(), " is wanted"));
    }
  }
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (!with_optimizer && absl::StartsWith(name, kOptimizerPrefix)) continue;
    if (wanted.count(name) == 0) unexpected.push_back(name);
  }
  if (missing.empty() && unexpected.empty() && shapes.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("[Checkpoint] '", checkpoint.directory(), "' does not fit this model",
                   with_optimizer ? " and optimizer" : "", Listed("missing", missing),
                   Listed("unexpected", unexpected), Listed("of another shape", shapes)));
}

// Weights that no optimizer has moved yet.
bool IsStart(const Checkpoint& checkpoint) {
  for (const auto& [name, info] : checkpoint.tensors()) {
    if (absl::StartsWith(name, kOptimizerPrefix)) return false;
  }
  return checkpoint.state().step == 0 && checkpoint.state().integers.count(kNumStepsName) == 0;
}

// The state of an optimizer before its first update of the checkpoint's weights.
absl::Status StartOptimizer(const Checkpoint& checkpoint, optim::Optimizer& optimizer) {
  absl::Status status;
  optimizer.VisitState([&](absl::string_view name, const Tensor& tensor) {
    if (absl::ConsumePrefix(&name, "master/")) {
      // From the file and not from the parameter, which may have been rounded.
      status.Update(ReadTensor(checkpoint, {absl::StrCat(kModelPrefix, name), tensor}));
    } else {
      CurrentBackend().Fill(0.0, tensor);
    }
  });
  return status;
}

absl::StatusOr<int64_t> NumStepsOf(const Checkpoint& checkpoint) {
  auto it = checkpoint.state().integers.find(kNumStepsName);
  if (it != checkpoint.state().integers.end() && it->second >= 0) return it->second;
  return absl::InvalidArgumentError(absl::StrCat("[Checkpoint] '", checkpoint.directory(),
                                                 "' has no count '", kNumStepsName, "'"));
}

absl::Status ReadAll(const Checkpoint& checkpoint, Module& model, optim::Optimizer* optimizer) {
  try {
    model.VisitParameters([](Parameter& parameter) {
      if (!parameter.value.data().defined()) Allocate(parameter);
    });
    for (const NamedTensor& named : TensorsOf(model, optimizer)) {
      MF_RETURN_IF_ERROR(ReadTensor(checkpoint, named));
    }
  } catch (const StatusError& error) {  // the pool is full
    return error.status();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SaveTrainingState(const std::string& root, Module& model,
                                              optim::Optimizer* optimizer,
                                              const CheckpointState& state,
                                              const SaveOptions& options) {
  CheckpointState saved = state;
  for (const auto& [name, value] : state.integers) {
    if (absl::StartsWith(name, kOptimizerPrefix)) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Checkpoint] the integer '", name, "' has a reserved name"));
    }
  }
  if (optimizer != nullptr) saved.integers[kNumStepsName] = optimizer->num_steps();
  std::vector<NamedTensor> tensors = TensorsOf(model, optimizer);
  try {
    for (NamedTensor& named : tensors) {
      if (named.tensor.defined()) named.tensor = ToHost(named.tensor);
    }
  } catch (const StatusError& error) {
    return error.status();
  }
  return SaveCheckpoint(root, saved, tensors, options);
}

absl::StatusOr<CheckpointState> LoadTrainingState(const std::string& directory, Module& model,
                                                  optim::Optimizer* optimizer) {
  MF_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  const bool starts = optimizer != nullptr && IsStart(checkpoint);
  optim::Optimizer* restored = starts ? nullptr : optimizer;
  MF_RETURN_IF_ERROR(CheckFits(checkpoint, WantedShapes(model, restored), restored != nullptr));
  int64_t num_steps = 0;
  if (restored != nullptr) {
    MF_ASSIGN_OR_RETURN(num_steps, NumStepsOf(checkpoint));
  }
  absl::Status status = ReadAll(checkpoint, model, restored);
  if (status.ok() && starts) status = StartOptimizer(checkpoint, *optimizer);
  // Also after a failure: what was read so far was written.
  model.VisitParameters([](Parameter& parameter) { parameter.value.BumpVersion(); });
  MF_RETURN_IF_ERROR(status);
  if (optimizer != nullptr) optimizer->set_num_steps(num_steps);
  CheckpointState state = checkpoint.state();
  state.integers.erase(kNumStepsName);
  return state;
}

}  // namespace meshfold::parallel
