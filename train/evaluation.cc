#include "train/evaluation.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"
#include "models/hf_names.h"
#include "parallel/stage.h"

namespace meshfold::train {
namespace {

absl::StatusOr<std::vector<int32_t>> ReadIds(const SafetensorsFile& file, const std::string& name,
                                             EvalBatch& batch, int64_t vocab_size,
                                             bool negative_ok) {
  MF_ASSIGN_OR_RETURN(SafetensorsInfo info, file.info(name));
  if (info.shape.size() != 2 ||
      (batch.batch != 0 && (info.shape[0] != batch.batch || info.shape[1] != batch.sequence))) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": '", name, "' has shape ",
                                                   Shape(info.shape).ToString(),
                                                   ", wanted [batch, sequence] as input_ids"));
  }
  batch.batch = info.shape[0];
  batch.sequence = info.shape[1];
  Tensor wide = Tensor::Contiguous(Shape(info.shape), DType::kI64, SystemHostAllocator());
  MF_RETURN_IF_ERROR(file.Read(name, wide));
  std::vector<int32_t> ids;
  for (int64_t id : wide.span<int64_t>()) {
    if (id >= vocab_size || (id < 0 && !negative_ok)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file.path(), ": '", name, "' holds id ", id, " at row ",
          static_cast<int64_t>(ids.size()) / batch.sequence, ", column ",
          static_cast<int64_t>(ids.size()) % batch.sequence, "; the vocabulary has ", vocab_size));
    }
    ids.push_back(id < 0 ? -100 : static_cast<int32_t>(id));
  }
  return ids;
}

// Targets of each position: the next label of the same row, -100 at row ends.
std::vector<int32_t> ShiftLabels(const EvalBatch& batch) {
  std::vector<int32_t> targets(batch.labels.size(), -100);
  for (int64_t b = 0; b < batch.batch; ++b) {
    for (int64_t s = 0; s + 1 < batch.sequence; ++s) {
      int64_t at = b * batch.sequence + s;
      targets[static_cast<size_t>(at)] = batch.labels[static_cast<size_t>(at) + 1];
    }
  }
  return targets;
}

double ReadScalar(const Tensor& scalar) {
  float value;
  AwaitOnHost(*CurrentBackend().CopyToHost(scalar, &value));
  return value;
}

void CollectTensors(LayerStack& model, const models::Family& family, const EvalBatch& batch,
                    const Tensor& logits, EvalResult& result) {
  Tensor loss = Tensor::Contiguous({1});
  CurrentBackend().Fill(result.loss, loss);
  result.tensors.push_back({"loss", loss});
  result.tensors.push_back(
      {"logits", logits.Reshape({batch.batch, batch.sequence, logits.cols()})});
  model.VisitParameters([&](Parameter& parameter) {
    if (!parameter.trained) return;
    for (models::HfTensor& part :
         models::HfTensorsOf(family, parameter.name, parameter.value.grad().tensor(),
                             models::HfExpertForm::kSplit)) {
      result.tensors.push_back({absl::StrCat("grad.", part.name), part.view});
    }
  });
}

}  // namespace

absl::StatusOr<EvalBatch> ReadEvalBatch(const std::string& path, int64_t vocab_size) {
  MF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
  EvalBatch batch;
  MF_ASSIGN_OR_RETURN(batch.input_ids, ReadIds(*file, "input_ids", batch, vocab_size, false));
  batch.labels = batch.input_ids;
  if (file->Has("labels")) {
    MF_ASSIGN_OR_RETURN(batch.labels, ReadIds(*file, "labels", batch, vocab_size, true));
  }
  if (batch.input_ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": 'input_ids' is empty"));
  }
  return batch;
}

absl::StatusOr<EvalResult> EvaluateBatch(LayerStack& model, const models::Family& family,
                                         const EvalBatch& batch, bool want_tensors) {
  std::vector<int32_t> targets = ShiftLabels(batch);
  EvalResult result;
  for (int32_t target : targets) result.tokens += target >= 0 ? 1 : 0;
  std::vector<int32_t> cu_seqlens;
  for (int64_t b = 0; b <= batch.batch; ++b) {
    cu_seqlens.push_back(static_cast<int32_t>(b * batch.sequence));
  }
  StepContext::Options options;
  options.loss_scale = result.tokens > 0 ? 1.0 / static_cast<double>(result.tokens) : 0.0;
  options.want_logits = want_tensors;
  MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
    ScopedGradMode mode(want_tensors ? GradMode::kRecord : GradMode::kNoGrad);
    StepContext context(MakePackedBatch(batch.input_ids, targets, cu_seqlens), options);
    parallel::Stage stage(model);
    stage.BeginStep(1);
    ThrowIfError(stage.Forward(0, context));
    result.loss = ReadScalar(stage.loss(0));
    for (const StepContext::AttachedLoss& attached : context.attached_losses()) {
      result.loss += ReadScalar(attached.value);
    }
    if (!want_tensors) return;
    ThrowIfError(stage.Backward(0));
    CollectTensors(model, family, batch, context.logits, result);
  }));
  return result;
}

}  // namespace meshfold::train
