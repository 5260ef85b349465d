// GradBuckets: gradients summed over groups of ranks while the backward still runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "comm/communicator.h"
#include "core/nn/module.h"
#include "core/tensor/tensor.h"

namespace meshfold::parallel {

struct GradBucketOptions {
  // A bucket is closed by the gradient that fills it: small enough that the first one leaves early,
  // large enough that latency does not count.
  int64_t bucket_bytes = int64_t{8} << 20;
};

// Owns the memory that the gradients of `parameters` are summed in, cut into buckets, each of one
// group, in the order in which a backward completes them (the reverse of VisitParameters). When the
// step's last micro-batch has completed every gradient of a bucket, and all earlier buckets have
// left, the bucket is all-reduced in place. Buckets always leave in the same order, whatever the
// data did. Sums are in order of rank, so their bits do not depend on the cuts.
//
// Gradients keep the padded row pitch of products inside a bucket, and the padding travels: a step
// moves the all-reduce of bytes() bytes.
class GradBuckets {
 public:
  using Group = std::shared_ptr<comm::Communicator>;
  // Takes over on_grad and the gradient buffers of the parameters that train and have a group in
  // groups [parameters.size()] (null: the gradient is whole here); parameters must outlive this.
  // Allocates in the current context; StatusError when the pool is full. Local.
  GradBuckets(absl::Span<Parameter* const> parameters, absl::Span<const Group> groups,
              const GradBucketOptions& options);
  ~GradBuckets();
  GradBuckets(const GradBuckets&) = delete;
  GradBuckets& operator=(const GradBuckets&) = delete;

  // Before the step's first backward. What a failed step left in flight is let go.
  void BeginStep();
  // After its last: waits until every gradient is the sum over its group. Collective. Errors of
  // starting or carrying out a reduction; the gradients are then worthless.
  absl::Status Finish();

  int64_t bytes() const;
  int64_t num_buckets() const { return static_cast<int64_t>(buckets_.size()); }

 private:
  struct Bucket {
    Group group;
    Tensor flat;  // f32 [n]
    int64_t num_gradients = 0;
    int64_t num_open = 0;  // gradients of this step that are not complete
    std::unique_ptr<comm::Work> work;
  };
  void Close(const Group& group, absl::Span<Parameter* const> parameters);
  void OnGradient(size_t bucket);
  void Abandon();

  std::vector<Bucket> buckets_;
  std::vector<Variable> leaves_;
  size_t next_ = 0;       // the first bucket that has not left
  absl::Status failure_;  // of starting a reduction
};

}  // namespace meshfold::parallel
