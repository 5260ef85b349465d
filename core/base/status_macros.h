// Early return on a non-OK Status, and unwrapping of StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/check.h"

#define MF_STATUS_CONCAT_INNER(a, b) a##b
#define MF_STATUS_CONCAT(a, b) MF_STATUS_CONCAT_INNER(a, b)

// Returns the Status of `expr` from the enclosing function when it is not OK.
#define MF_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::absl::Status mf_status_ = (expr);      \
    if (!mf_status_.ok()) return mf_status_; \
  } while (false)

// Declares or assigns `lhs` from the StatusOr `expr`, or returns its Status.
#define MF_ASSIGN_OR_RETURN(lhs, expr) \
  MF_ASSIGN_OR_RETURN_IMPL(MF_STATUS_CONCAT(mf_statusor_, __LINE__), lhs, expr)
#define MF_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()

namespace meshfold {

// The value of `result`, or StatusError: for code inside the graph.
template <typename T>
T ValueOrThrow(absl::StatusOr<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

}  // namespace meshfold
