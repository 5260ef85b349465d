#include "comm/work.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"

namespace meshfold::comm {

Work::Work(std::string what, absl::Duration deadline, std::vector<Tensor> buffers,
           int64_t sent_bytes)
    : what_(std::move(what)),
      deadline_(deadline),
      buffers_(std::move(buffers)),
      sent_bytes_(sent_bytes) {}

Work::~Work() {
  MF_CHECK(waited_ || std::uncaught_exceptions() > 0) << what_ << " was never waited on";
}

absl::Status Work::HostWait(absl::Duration deadline) {
  waited_ = true;
  if (finished_) return result_;
  const Time began = std::chrono::steady_clock::now();
  absl::Status status = DoWait(deadline);
  if (stats_ != nullptr) {
    stats_->AddExposed(key_, absl::FromChrono(std::chrono::steady_clock::now() - began));
  }
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(
        absl::StrCat("[", what_, "] is not over after ", absl::FormatDuration(deadline)));
  }
  finished_ = true;
  if (stats_ != nullptr) stats_->AddInFlight(key_, absl::FromChrono(EndedAt() - issued_));
  buffers_.clear();
  result_ = std::move(status);
  return result_;
}

Work::Time Work::EndedAt() { return std::chrono::steady_clock::now(); }

void Work::CountIn(std::shared_ptr<TrafficStats> stats, TrafficKey key, Time issued) {
  stats->AddCall(key, sent_bytes_);
  stats_ = std::move(stats);
  key_ = std::move(key);
  issued_ = issued;
}

void Work::WaitOn(Stream&) { ThrowIfError(HostWait(deadline_)); }

FinishedWork::FinishedWork(std::string what, absl::Status result)
    : Work(std::move(what), absl::ZeroDuration(), {}), status_(std::move(result)) {}

absl::Status FinishedWork::DoWait(absl::Duration) { return status_; }

}  // namespace meshfold::comm
