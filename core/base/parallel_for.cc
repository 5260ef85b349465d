#include "core/base/parallel_for.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <exception>

namespace meshfold {
namespace {

// Builds without OpenMP (ThreadSanitizer, fuzzing) run every loop in the calling thread.
#ifdef _OPENMP
bool InParallel() { return omp_in_parallel() != 0; }
#else
bool InParallel() { return true; }
#endif

// An exception must not leave an OpenMP region: the first one is kept and rethrown outside.
class ExceptionKeeper {
 public:
  template <typename F>
  void Run(F&& body) {
    try {
      body();
    } catch (...) {
#pragma omp critical(meshfold_parallel_for_exception)
      if (!exception_) exception_ = std::current_exception();
    }
  }
  void Rethrow() {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::exception_ptr exception_;
};

}  // namespace

void ParallelFor(int64_t count, int64_t grain, int num_threads,
                 absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  const int64_t parts = std::min<int64_t>(num_threads, count / std::max<int64_t>(grain, 1));
  if (parts <= 1 || InParallel()) {
    body(0, count);
    return;
  }
  [[maybe_unused]] const int threads = static_cast<int>(parts);
  ExceptionKeeper keeper;
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int64_t part = 0; part < parts; ++part) {
    keeper.Run([&] { body(count * part / parts, count * (part + 1) / parts); });
  }
  keeper.Rethrow();
}

void ParallelForDynamic(int64_t count, int num_threads, absl::FunctionRef<void(int64_t)> body) {
  if (num_threads <= 1 || count <= 1 || InParallel()) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  [[maybe_unused]] const int threads = static_cast<int>(std::min<int64_t>(num_threads, count));
  ExceptionKeeper keeper;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t i = 0; i < count; ++i) {
    keeper.Run([&] { body(i); });
  }
  keeper.Rethrow();
}

}  // namespace meshfold
