// Runtime: the backend, memory pool and execution context of one rank, and its measured GEMM rate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/backend/backend.h"
#include "core/base/exec_context.h"
#include "memory/caching_allocator.h"

namespace meshfold::train {

struct RuntimeOptions {
  std::string backend = "cpu";
  int threads = 0;           // 0: all cores
  int64_t device_limit = 0;  // bytes of the device pool; 0: no limit
};

// Owns what an ExecContext points to. Enter it with ScopedExecContext scope(runtime.context()) on
// the thread that computes. Tensors must not outlive it.
class Runtime {
 public:
  static absl::StatusOr<std::unique_ptr<Runtime>> Create(const RuntimeOptions& options);
  ~Runtime();

  const ExecContext& context() const { return context_; }
  Backend& backend() { return *backend_; }
  memory::CachingAllocator& allocator() { return *allocator_; }
  int threads() const { return context_.num_threads; }

  // FLOPs per second of a 1024 x 1024 x 1024 f32 product on this rank's threads: median of
  // `repetitions` after one warm-up. What MFU is measured against.
  double MeasureGemmRate(int repetitions = 5);

 private:
  Runtime() = default;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<memory::CachingAllocator> allocator_;
  ExecContext context_;
};

// Cores that this process may run on.
int NumUsableCores();

}  // namespace meshfold::train
