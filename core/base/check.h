// Invariant checks and the one exception type of the graph.
//
// Two kinds of failure exist. A broken invariant of our own is a bug: MF_CHECK prints where and
// aborts. A failure that depends on the outside (input, memory, a peer) is an absl::Status; inside
// Forward and backward closures, where no Status can be returned, it travels as StatusError.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace meshfold {

// Carries a non-OK Status through code that returns values (module Forward, backward functions).
// Caught only where parallel/stage enters the graph, in a fiber's entry, and at the Python
// boundary.
class StatusError : public std::exception {
 public:
  explicit StatusError(absl::Status status)
      : status_(std::move(status)), what_(std::string(status_.message())) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  absl::Status status_;
  std::string what_;
};

// Throws StatusError(InvalidArgument). Messages start with the op: "[Linear] x has 3 columns ...".
[[noreturn]] void ThrowInvalidArgument(std::string message);

// Throws StatusError when `status` is not OK.
void ThrowIfError(const absl::Status& status);

namespace internal {

// Prints "file:line: check failed: <condition> <message>" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const std::string& message);

class CheckMessage {
 public:
  CheckMessage(const char* file, int line, const char* condition)
      : file_(file), line_(line), condition_(condition) {}
  [[noreturn]] ~CheckMessage() { CheckFailed(file_, line_, condition_, stream_.str()); }
  std::ostream& stream() { return stream_; }

 private:
  const char* file_;
  int line_;
  const char* condition_;
  std::ostringstream stream_;
};

// Binds weaker than << and gives the macro below the type void.
struct DiscardStream {
  void operator&(std::ostream&) const {}
};

}  // namespace internal
}  // namespace meshfold

// Aborts with the place and the streamed message when `condition` is false: own invariants only.
// An expression, so that `if (a) MF_CHECK(b); else ...` means what it says.
#define MF_CHECK(condition)                         \
  __builtin_expect(static_cast<bool>(condition), 1) \
      ? static_cast<void>(0)                        \
      : ::meshfold::internal::DiscardStream() &     \
            ::meshfold::internal::CheckMessage(__FILE__, __LINE__, #condition).stream()

// As MF_CHECK(a op b), printing both values.
#define MF_CHECK_OP(a, op, b) MF_CHECK((a)op(b)) << " (" << (a) << " against " << (b) << ") "
#define MF_CHECK_EQ(a, b) MF_CHECK_OP(a, ==, b)
#define MF_CHECK_NE(a, b) MF_CHECK_OP(a, !=, b)
#define MF_CHECK_LT(a, b) MF_CHECK_OP(a, <, b)
#define MF_CHECK_LE(a, b) MF_CHECK_OP(a, <=, b)
#define MF_CHECK_GT(a, b) MF_CHECK_OP(a, >, b)
#define MF_CHECK_GE(a, b) MF_CHECK_OP(a, >=, b)
