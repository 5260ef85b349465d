#include "core/base/exec_context.h"

#include "core/base/check.h"

namespace meshfold {
namespace {

thread_local const ExecContext* current_context = nullptr;

ExecContext WithGradMode(GradMode mode) {
  ExecContext context = CurrentContext();
  context.grad_mode = mode;
  return context;
}

}  // namespace

const ExecContext& CurrentContext() {
  MF_CHECK(current_context != nullptr) << " no ExecContext: enter a ScopedExecContext first";
  return *current_context;
}

bool HasCurrentContext() { return current_context != nullptr; }

const ExecContext* ExchangeCurrentContext(const ExecContext* context) {
  const ExecContext* previous = current_context;
  current_context = context;
  return previous;
}

ScopedExecContext::ScopedExecContext(const ExecContext& context)
    : previous_(ExchangeCurrentContext(&context)) {}

ScopedExecContext::~ScopedExecContext() { ExchangeCurrentContext(previous_); }

ScopedGradMode::ScopedGradMode(GradMode mode) : context_(WithGradMode(mode)), scope_(context_) {}

}  // namespace meshfold
