#include "parallel/grad_bucket.h"

#include <algorithm>
#include <utility>

#include "core/backend/backend.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"

namespace meshfold::parallel {
namespace {

// Elements between the starts of two gradients: 64 bytes, what kernels like.
constexpr int64_t kAlignment = 16;

int64_t PitchOf(const Parameter& parameter) {
  return PaddedPitch(parameter.value.shape().cols(), DType::kF32);
}

int64_t PlaceOf(const Parameter& parameter) {
  const int64_t elements = parameter.value.shape().rows() * PitchOf(parameter);
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

GradBuckets::GradBuckets(absl::Span<Parameter* const> parameters, absl::Span<const Group> groups,
                         const GradBucketOptions& options) {
  MF_CHECK_EQ(parameters.size(), groups.size());
  struct Open {
    Group group;
    std::vector<Parameter*> parameters;
    int64_t bytes = 0;
  };
  std::vector<Open> open;  // one a group, in order of first use
  for (size_t i = parameters.size(); i-- > 0;) {
    Parameter* parameter = parameters[i];
    if (groups[i] == nullptr || !parameter->trained || !parameter->value.requires_grad()) continue;
    auto at = std::find_if(open.begin(), open.end(),
                           [&](const Open& candidate) { return candidate.group == groups[i]; });
    if (at == open.end()) at = open.insert(open.end(), {groups[i], {}, 0});
    at->parameters.push_back(parameter);
    at->bytes += PlaceOf(*parameter) * SizeOf(DType::kF32);
    if (at->bytes < options.bucket_bytes) continue;
    Close(at->group, at->parameters);
    at->parameters.clear();
    at->bytes = 0;
  }
  for (const Open& rest : open) {
    if (!rest.parameters.empty()) Close(rest.group, rest.parameters);
  }
}

GradBuckets::~GradBuckets() {
  Abandon();
  for (const Variable& leaf : leaves_) leaf.set_on_grad(nullptr);
}

void GradBuckets::Close(const Group& group, absl::Span<Parameter* const> parameters) {
  int64_t elements = 0;
  for (const Parameter* parameter : parameters) elements += PlaceOf(*parameter);
  Bucket bucket;
  bucket.group = group;
  bucket.flat = Tensor::Contiguous({elements});
  bucket.num_gradients = static_cast<int64_t>(parameters.size());
  // Padding is never written, and is summed with the rest.
  CurrentBackend().Fill(0.0, bucket.flat);
  const size_t index = buckets_.size();
  int64_t at = 0;
  for (Parameter* parameter : parameters) {
    parameter->value.grad().SetBuffer(Tensor::FromStorage(
        bucket.flat.storage(), parameter->value.shape(), DType::kF32, at, PitchOf(*parameter)));
    parameter->value.set_on_grad([this, index] { OnGradient(index); });
    leaves_.push_back(parameter->value);
    at += PlaceOf(*parameter);
  }
  buckets_.push_back(std::move(bucket));
}

void GradBuckets::BeginStep() {
  Abandon();
  for (Bucket& bucket : buckets_) bucket.num_open = bucket.num_gradients;
  next_ = 0;
  failure_ = absl::OkStatus();
}

void GradBuckets::OnGradient(size_t index) {
  MF_CHECK_GT(buckets_[index].num_open, 0) << " bucket " << index << ": a gradient came twice";
  --buckets_[index].num_open;
  for (; next_ < buckets_.size() && buckets_[next_].num_open == 0 && failure_.ok(); ++next_) {
    Bucket& bucket = buckets_[next_];
    absl::StatusOr<std::unique_ptr<comm::Work>> work =
        bucket.group->AllReduce(bucket.flat, bucket.flat);
    if (work.ok()) {
      bucket.work = *std::move(work);
    } else {
      failure_ = work.status();
    }
  }
}

absl::Status GradBuckets::Finish() {
  MF_RETURN_IF_ERROR(failure_);
  MF_CHECK_EQ(next_, buckets_.size()) << " gradients are missing";
  for (Bucket& bucket : buckets_) {
    MF_RETURN_IF_ERROR(bucket.work->HostWait(bucket.group->deadline()));
    bucket.work.reset();
  }
  return absl::OkStatus();
}

void GradBuckets::Abandon() {
  for (Bucket& bucket : buckets_) {
    if (bucket.work == nullptr) continue;
    bucket.work->HostWait(absl::ZeroDuration()).IgnoreError();
    bucket.work.reset();
  }
}

int64_t GradBuckets::bytes() const {
  int64_t bytes = 0;
  for (const Bucket& bucket : buckets_) bytes += bucket.flat.nbytes();
  return bytes;
}

}  // namespace meshfold::parallel
