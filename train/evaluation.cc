#include "train/evaluation.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"
#include "models/hf_names.h"
#include "parallel/gather_whole.h"
#include "parallel/grad_bucket.h"
#include "parallel/rank_sum.h"
#include "parallel/reduction_groups.h"
#include "parallel/sharding.h"
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

// The rows of a batch that a data rank has.
struct RankRows {
  parallel::Interval rows;
  int64_t each = 0;  // rows of the first ranks
};

RankRows RowsOf(const EvalBatch& batch, const parallel::Meshes* meshes) {
  if (meshes == nullptr) return {{0, batch.batch}, batch.batch};
  const comm::ProcessGroup& data = meshes->dense.group("dp");
  return {parallel::PartOf(batch.batch, data.size(), data.rank()),
          parallel::PartOf(batch.batch, data.size(), 0).count};
}

// A rank without rows gets a padding token, so that it takes part in every exchange.
PackedBatch PackRows(const EvalBatch& batch, const std::vector<int32_t>& targets,
                     const parallel::Interval& rows) {
  if (rows.count == 0) return MakePackedBatch({0}, {-100}, {0, 1}, /*num_padding=*/1);
  const auto part = [&](const std::vector<int32_t>& all) {
    const auto begin = all.begin() + rows.begin * batch.sequence;
    return std::vector<int32_t>(begin, begin + rows.count * batch.sequence);
  };
  std::vector<int32_t> cu_seqlens;
  for (int64_t b = 0; b <= rows.count; ++b) {
    cu_seqlens.push_back(static_cast<int32_t>(b * batch.sequence));
  }
  return MakePackedBatch(part(batch.input_ids), part(targets), cu_seqlens);
}

// [B, S, V] of the logits of every data rank's rows.
Tensor WholeLogits(const Tensor& own, const EvalBatch& batch, const RankRows& rows,
                   const parallel::Meshes* meshes) {
  const Shape shape = {batch.batch, batch.sequence, own.cols()};
  if (meshes == nullptr) return own.Reshape(shape);
  comm::Communicator& data = *meshes->dense.group("dp").communicator;
  const int64_t each = rows.each * batch.sequence, count = rows.rows.count * batch.sequence;
  const Tensor all = Tensor::Contiguous({data.size() * each, own.cols()});
  const Tensor part = all.Narrow(data.rank() * each, each);
  CurrentBackend().Fill(0.0, part);
  CurrentBackend().Copy(own.Narrow(0, count), part.Narrow(0, count));
  Await(*ValueOrThrow(data.AllGather(part, all)));
  // Only the last ranks have fewer rows than `each`.
  return all.Narrow(0, batch.batch * batch.sequence).Reshape(shape);
}

// Sums gradients over the ranks that have summands of them.
class GradReducer {
 public:
  GradReducer(LayerStack& model, const parallel::Meshes* meshes) {
    if (meshes == nullptr) return;
    const std::vector<Parameter*> parameters = ParametersOf(model);
    buckets_.emplace(parameters, ValueOrThrow(parallel::MakeReductionGroups(parameters, *meshes)),
                     parallel::GradBucketOptions());
    buckets_->BeginStep();
  }
  void Finish() {
    if (buckets_.has_value()) ThrowIfError(buckets_->Finish());
  }

 private:
  std::optional<parallel::GradBuckets> buckets_;
};

// The gradients of trained parameters, whole: on every rank without meshes, on rank 0 with them. On
// the host.
std::vector<std::pair<std::string, Tensor>> WholeGradients(LayerStack& model,
                                                           const parallel::Meshes* meshes) {
  std::vector<std::pair<std::string, Tensor>> gradients;
  std::vector<parallel::GatherInput> parts;
  model.VisitParameters([&](Parameter& parameter) {
    if (!parameter.trained) return;
    const Tensor& gradient = parameter.value.grad().tensor();
    gradients.emplace_back(parameter.name, gradient);
    if (meshes != nullptr) parts.push_back({parameter.name, &parameter, gradient});
  });
  if (meshes == nullptr) return gradients;
  const std::map<std::string, Tensor> wholes =
      ValueOrThrow(parallel::GatherWhole({*meshes->dense.world(), meshes->ranks}, parts));
  if (meshes->rank() != 0) return {};
  for (auto& [name, gradient] : gradients) gradient = wholes.at(name);
  return gradients;
}

void CollectTensors(LayerStack& model, const models::Family& family, const Tensor& logits_BSV,
                    const parallel::Meshes* meshes, EvalResult& result) {
  const auto gradients = WholeGradients(model, meshes);
  if (meshes != nullptr && meshes->rank() != 0) return;
  Tensor loss = Tensor::Contiguous({1});
  CurrentBackend().Fill(result.loss, loss);
  result.tensors.push_back({"loss", loss});
  result.tensors.push_back({"logits", logits_BSV});
  for (const auto& [name, gradient] : gradients) {
    for (models::HfTensor& part :
         models::HfTensorsOf(family, name, gradient, models::HfExpertForm::kSplit)) {
      result.tensors.push_back({absl::StrCat("grad.", part.name), part.view});
    }
  }
}

// The batch's loss out of the ranks' parts.
double SumOfLosses(double lm_loss, double attached, const parallel::Meshes* meshes) {
  if (meshes == nullptr) return lm_loss + attached;
  // Tensor-parallel neighbours have the same tokens, and tokens of their own in MoE layers.
  const double own = meshes->dense.group("tp").rank() == 0 ? lm_loss + attached : attached;
  comm::Communicator& all = *meshes->dense.group("dp_tp").communicator;
  return ValueOrThrow(parallel::SumOverRanks(all, {own}))[0];
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
                                         const EvalBatch& batch, bool want_tensors,
                                         const parallel::Meshes* meshes) {
  const std::vector<int32_t> targets = ShiftLabels(batch);
  const RankRows rows = RowsOf(batch, meshes);
  EvalResult result;
  for (int32_t target : targets) result.tokens += target >= 0 ? 1 : 0;
  StepContext::Options options;
  options.loss_scale = result.tokens > 0 ? 1.0 / static_cast<double>(result.tokens) : 0.0;
  options.token_weight = static_cast<double>(rows.rows.count) / static_cast<double>(batch.batch);
  options.want_logits = want_tensors;
  MF_RETURN_IF_ERROR(parallel::CatchStatus([&] {
    ScopedGradMode mode(want_tensors ? GradMode::kRecord : GradMode::kNoGrad);
    StepContext context(PackRows(batch, targets, rows.rows), options);
    parallel::Stage stage(model);
    stage.BeginStep(1);
    GradReducer reducer(model, want_tensors ? meshes : nullptr);
    ThrowIfError(stage.Forward(0, context));
    double attached_losses = 0.0;
    for (const StepContext::AttachedLoss& attached : context.attached_losses()) {
      attached_losses += ReadScalar(attached.value);
    }
    result.loss = SumOfLosses(ReadScalar(stage.loss(0)), attached_losses, meshes);
    if (!want_tensors) return;
    ThrowIfError(stage.Backward(0));
    reducer.Finish();
    CollectTensors(model, family, WholeLogits(context.logits, batch, rows, meshes), meshes, result);
  }));
  return result;
}

}  // namespace meshfold::train
