#include "tests/testing/scoped_test_context.h"

#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"

namespace meshfold::testing {
namespace {

ExecContext MakeContext(Backend& backend, int num_threads, GradMode grad_mode) {
  ExecContext context;
  context.backend = &backend;
  context.allocator = &SystemHostAllocator();
  context.stream = &backend.default_stream();
  context.grad_mode = grad_mode;
  context.num_threads = num_threads;
  return context;
}

}  // namespace

ScopedTestContext::ScopedTestContext(int num_threads, GradMode grad_mode,
                                     const std::string& backend)
    : backend_(ValueOrThrow(MakeBackend(backend))),
      context_(MakeContext(*backend_, num_threads, grad_mode)),
      scope_(context_) {}

}  // namespace meshfold::testing
