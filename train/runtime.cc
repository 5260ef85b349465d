#include "train/runtime.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/base/status_macros.h"

namespace meshfold::train {

int NumUsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(const RuntimeOptions& options) {
  std::unique_ptr<Runtime> runtime(new Runtime);
  MF_ASSIGN_OR_RETURN(runtime->backend_, MakeBackend(options.backend));
  runtime->allocator_ = std::make_unique<memory::CachingAllocator>(
      "device", DeviceKind::kHost, SystemHostAllocator(), options.device_limit);
  runtime->context_.backend = runtime->backend_.get();
  runtime->context_.allocator = runtime->allocator_.get();
  runtime->context_.stream = &runtime->backend_->default_stream();
  runtime->context_.num_threads = options.threads > 0 ? options.threads : NumUsableCores();
  return runtime;
}

Runtime::~Runtime() = default;

double Runtime::MeasureGemmRate(int repetitions) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kSize = 1024;
  // On memory of its own: the run's limit, peak and cache are about the run.
  memory::CachingAllocator pool("gemm rate", allocator_->device(), SystemHostAllocator(), 0);
  ExecContext context = context_;
  context.allocator = &pool;
  ScopedExecContext scope(context);
  GemmArgs args{.a = Tensor::Empty({kSize, kSize}),
                .b = Tensor::Empty({kSize, kSize}),
                .out = Tensor::Empty({kSize, kSize})};
  backend_->Fill(1.0, args.a);
  backend_->Fill(1.0, args.b);
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    Clock::time_point start = Clock::now();
    backend_->Gemm(args);
    ThrowIfError(context_.stream->Synchronize());
    double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    if (i > 0) seconds.push_back(elapsed);
  }
  std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
  return 2.0 * kSize * kSize * kSize / seconds[static_cast<size_t>(repetitions / 2)];
}

}  // namespace meshfold::train
