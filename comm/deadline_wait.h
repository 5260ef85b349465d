// Waiting on a condition variable with a deadline in Abseil's terms.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace meshfold::comm {

// Waits until `is_over()`, at most `deadline`; whether it is over. An infinite deadline is none.
template <typename IsOver>
bool WaitAtMost(absl::Duration deadline, std::condition_variable& changed,
                std::unique_lock<std::mutex>& lock, IsOver is_over) {
  if (deadline == absl::InfiniteDuration()) {
    changed.wait(lock, is_over);
    return true;
  }
  const auto until = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(deadline);
  return changed.wait_until(lock, until, is_over);
}

}  // namespace meshfold::comm
