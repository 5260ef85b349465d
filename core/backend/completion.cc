#include "core/backend/completion.h"

#include "core/base/check.h"
#include "core/base/exec_context.h"

namespace meshfold {
namespace {

// Long enough for any real wait, short enough that nothing hangs for ever.
constexpr absl::Duration kDefaultDeadline = absl::Minutes(10);

void YieldOnce(const ExecContext& context) {
  if (context.yielder != nullptr) context.yielder->Yield();
}

}  // namespace

void Await(Completion& completion) {
  YieldOnce(CurrentContext());
  if (CurrentContext().stream != nullptr) {
    completion.WaitOn(*CurrentContext().stream);
  } else {
    ThrowIfError(completion.HostWait(kDefaultDeadline));
  }
}

void AwaitOnHost(Completion& completion) {
  YieldOnce(CurrentContext());
  ThrowIfError(completion.HostWait(kDefaultDeadline));
}

}  // namespace meshfold
