// An execution context for a test: a backend, plain host memory and a number of threads.
#pragma once

#include <memory>
#include <string>

#include "core/backend/backend.h"
#include "core/base/exec_context.h"

namespace meshfold::testing {

// Installs the context for its own lifetime; a gtest fixture may hold one as a member.
class ScopedTestContext {
 public:
  explicit ScopedTestContext(int num_threads = 1, GradMode grad_mode = GradMode::kRecord,
                             const std::string& backend = "cpu");
  Backend& backend() { return *backend_; }
  // The installed context; changes show at once.
  ExecContext& context() { return context_; }

 private:
  std::unique_ptr<Backend> backend_;
  ExecContext context_;
  ScopedExecContext scope_;
};

}  // namespace meshfold::testing
