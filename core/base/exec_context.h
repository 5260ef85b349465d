// Where an op runs: backend, allocator, stream, gradient mode, threads.
//
// The pointer to the current ExecContext is the project's only mutable thread_local. It is set by
// RAII and swapped together with a fiber, so two ranks can live as threads of one process and two
// micro-batches as fibers of one thread.
#pragma once

#include <string>

namespace meshfold {

class Allocator;
class Backend;
class Stream;
class Yielder;

enum class GradMode {
  kRecord,  // ops on variables that require gradients enter the graph
  kNoGrad,  // nothing is recorded or saved (evaluation, generation, optimizer)
};

struct ExecContext {
  Backend* backend = nullptr;      // kernels; never null inside a scope
  Allocator* allocator = nullptr;  // memory of new tensors; never null inside a scope
  Stream* stream = nullptr;        // order of device work; the CPU backend runs at once
  GradMode grad_mode = GradMode::kRecord;
  int num_threads = 1;         // threads a kernel of this rank may use
  Yielder* yielder = nullptr;  // set inside a fiber only
  std::string rank_tag;        // leads log lines and error messages, "" for one process
};

// The innermost context of this thread (or fiber); a check failure outside any scope.
const ExecContext& CurrentContext();

// True inside some scope.
bool HasCurrentContext();

// Installs `context` for the current scope. The context must outlive the scope.
class ScopedExecContext {
 public:
  explicit ScopedExecContext(const ExecContext& context);
  ~ScopedExecContext();
  ScopedExecContext(const ScopedExecContext&) = delete;
  ScopedExecContext& operator=(const ScopedExecContext&) = delete;

 private:
  const ExecContext* previous_;
};

// A copy of the current context with another gradient mode, installed for the scope.
class ScopedGradMode {
 public:
  explicit ScopedGradMode(GradMode mode);

 private:
  ExecContext context_;
  ScopedExecContext scope_;
};

// Swaps the thread's context pointer: for the fiber switch only.
const ExecContext* ExchangeCurrentContext(const ExecContext* context);

}  // namespace meshfold
