#include "parallel/train_state.h"

#include <map>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/nn/init.h"
#include "core/tensor/allocator.h"
#include "parallel/checkpoint_write.h"
#include "parallel/save_plan.h"
#include "parallel/shared_save.h"
#include "parallel/state_tensors.h"

namespace meshfold::parallel {
namespace {

constexpr char kNumStepsName[] = "optimizer/num_steps";

// Reads the part that `parameter` holds of the tensor `name` into `dst`.
absl::Status ReadPart(const Checkpoint& checkpoint, const std::string& name,
                      const Parameter& parameter, const Tensor& dst) {
  if (dst.device() == DeviceKind::kHost) return checkpoint.ReadBox(name, parameter.part, dst);
  Tensor host = Tensor::Contiguous(dst.shape(), dst.dtype(), SystemHostAllocator());
  MF_RETURN_IF_ERROR(checkpoint.ReadBox(name, parameter.part, host));
  Tensor dense = dst.IsContiguous() ? dst : Tensor::Contiguous(dst.shape(), dst.dtype());
  AwaitOnHost(*CurrentBackend().CopyFromHost(host.raw(), dense));
  if (!dst.IsContiguous()) CurrentBackend().Copy(dense, dst);
  return absl::OkStatus();
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

absl::Status CheckFits(const Checkpoint& checkpoint, const std::vector<StateTensor>& tensors,
                       bool with_optimizer) {
  std::map<std::string, Shape> wanted;
  for (const StateTensor& state : tensors) wanted[state.name] = state.parameter->shape;
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
absl::Status StartOptimizer(const Checkpoint& checkpoint, Module& model,
                            optim::Optimizer& optimizer) {
  MF_ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, StateTensorsOf(model, &optimizer));
  for (const StateTensor& state : tensors) {
    if (absl::StartsWith(state.name, kModelPrefix)) continue;
    if (absl::StartsWith(state.name, absl::StrCat(kOptimizerPrefix, "master/"))) {
      // From the file and not from the parameter, which may have been rounded.
      MF_RETURN_IF_ERROR(ReadPart(checkpoint, absl::StrCat(kModelPrefix, state.parameter->name),
                                  *state.parameter, state.tensor));
    } else {
      CurrentBackend().Fill(0.0, state.tensor);
    }
  }
  return absl::OkStatus();
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
    MF_ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, StateTensorsOf(model, optimizer));
    for (const StateTensor& state : tensors) {
      MF_RETURN_IF_ERROR(ReadPart(checkpoint, state.name, *state.parameter, state.tensor));
    }
  } catch (const StatusError& error) {  // the pool is full
    return error.status();
  }
  return absl::OkStatus();
}

// What a lone process writes: everything. InvalidArgument where it holds a part only.
absl::Status CheckWhole(const std::vector<StateTensor>& tensors) {
  for (const StateTensor& state : tensors) {
    const Parameter& parameter = *state.parameter;
    if (parameter.part.IsWhole(parameter.shape)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "[Checkpoint] '", state.name, "' is the part ", parameter.part.ToString(), " of ",
        parameter.shape.ToString(), "; it is saved by all ranks together, or not at all"));
  }
  return absl::OkStatus();
}

// Keeps what this rank writes of what it holds.
absl::StatusOr<std::vector<StateTensor>> SelectOwn(std::vector<StateTensor> tensors,
                                                   const ShardingContext& sharding) {
  const int64_t rank = sharding.world.rank();
  const int64_t stage = sharding.ranks.dense.coordinate(rank, "pp");
  std::vector<StateTensor> counted, own;
  std::vector<SavedTensor> planned;
  for (StateTensor& state : tensors) {
    if (!IsFirstStage(*state.parameter, stage)) continue;
    if (absl::Status status = CheckPartOf(*state.parameter, sharding); !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Checkpoint] '", state.name, "' ", status.message()));
    }
    planned.push_back({state.parameter->shape, state.parameter->layout,
                       state.tensor.defined() ? SizeOf(state.tensor.dtype()) : 0});
    counted.push_back(std::move(state));
  }
  MF_ASSIGN_OR_RETURN(const std::vector<bool> writes, PlanSave(planned, sharding.ranks, rank));
  for (size_t i = 0; i < counted.size(); ++i) {
    if (writes[i]) own.push_back(std::move(counted[i]));
  }
  return own;
}

// Local.
absl::StatusOr<std::vector<TensorPart>> PartsToWrite(Module& model, optim::Optimizer* optimizer,
                                                     const CheckpointState& state,
                                                     const ShardingContext* sharding) {
  for (const auto& [name, value] : state.integers) {
    if (absl::StartsWith(name, kOptimizerPrefix)) {
      return absl::InvalidArgumentError(
          absl::StrCat("[Checkpoint] the integer '", name, "' has a reserved name"));
    }
  }
  MF_ASSIGN_OR_RETURN(std::vector<StateTensor> tensors, StateTensorsOf(model, optimizer));
  if (sharding != nullptr) {
    MF_ASSIGN_OR_RETURN(tensors, SelectOwn(std::move(tensors), *sharding));
  } else {
    MF_RETURN_IF_ERROR(CheckWhole(tensors));
  }
  std::vector<TensorPart> parts;
  try {
    for (const StateTensor& own : tensors) {
      parts.push_back({own.name, own.tensor.defined() ? ToHost(own.tensor) : own.tensor,
                       own.parameter->shape, own.parameter->part});
    }
  } catch (const StatusError& error) {
    return error.status();
  }
  return parts;
}

}  // namespace

absl::StatusOr<std::string> SaveTrainingState(const std::string& root, Module& model,
                                              optim::Optimizer* optimizer,
                                              const CheckpointState& state,
                                              const SaveOptions& options,
                                              const ShardingContext* sharding) {
  CheckpointState saved = state;
  if (optimizer != nullptr) saved.integers[kNumStepsName] = optimizer->num_steps();
  absl::StatusOr<std::vector<TensorPart>> parts = PartsToWrite(model, optimizer, state, sharding);
  if (sharding != nullptr) return SaveShared(sharding->world, root, saved, parts, options);
  MF_RETURN_IF_ERROR(parts.status());
  std::vector<NamedTensor> whole;
  for (TensorPart& part : *parts) whole.push_back({std::move(part.name), std::move(part.tensor)});
  return SaveCheckpoint(root, saved, whole, options);
}

absl::StatusOr<CheckpointState> LoadTrainingState(const std::string& directory, Module& model,
                                                  optim::Optimizer* optimizer) {
  MF_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(directory));
  const bool starts = optimizer != nullptr && IsStart(checkpoint);
  optim::Optimizer* restored = starts ? nullptr : optimizer;
  MF_ASSIGN_OR_RETURN(const std::vector<StateTensor> wanted, StateTensorsOf(model, restored));
  MF_RETURN_IF_ERROR(CheckFits(checkpoint, wanted, restored != nullptr));
  int64_t num_steps = 0;
  if (restored != nullptr) {
    MF_ASSIGN_OR_RETURN(num_steps, NumStepsOf(checkpoint));
  }
  absl::Status status = ReadAll(checkpoint, model, restored);
  if (status.ok() && starts) status = StartOptimizer(checkpoint, model, *optimizer);
  // Also after a failure: what was read so far was written.
  model.VisitParameters([](Parameter& parameter) { parameter.value.BumpVersion(); });
  MF_RETURN_IF_ERROR(status);
  if (optimizer != nullptr) optimizer->set_num_steps(num_steps);
  CheckpointState state = checkpoint.state();
  state.integers.erase(kNumStepsName);
  return state;
}

}  // namespace meshfold::parallel
