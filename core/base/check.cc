#include "core/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace meshfold {

void ThrowInvalidArgument(std::string message) {
  throw StatusError(absl::InvalidArgumentError(message));
}

void ThrowIfError(const absl::Status& status) {
  if (!status.ok()) throw StatusError(status);
}

namespace internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s\n", file, line, condition, message.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace internal
}  // namespace meshfold
