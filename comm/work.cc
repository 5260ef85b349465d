#include "comm/work.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold::comm {

Work::Work(std::string what, absl::Duration deadline, std::vector<Tensor> buffers)
    : what_(std::move(what)), deadline_(deadline), buffers_(std::move(buffers)) {}

Work::~Work() {
  MF_CHECK(waited_ || std::uncaught_exceptions() > 0) << what_ << " was never waited on";
}

absl::Status Work::HostWait(absl::Duration deadline) {
  waited_ = true;
  if (finished_) return result_;
  absl::Status status = DoWait(deadline);
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("[", what_, "] is not over after ", absl::FormatDuration(deadline)));
  }
  finished_ = true;
  buffers_.clear();
  result_ = std::move(status);
  return result_;
}

void Work::WaitOn(Stream&) { ThrowIfError(HostWait(deadline_)); }

FinishedWork::FinishedWork(std::string what, absl::Status result)
    : Work(std::move(what), absl::ZeroDuration(), {}), status_(std::move(result)) {}

absl::Status FinishedWork::DoWait(absl::Duration) { return status_; }

}  // namespace meshfold::comm
