#include "tests/parallel/failing_system_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>

namespace meshfold::testing {
namespace {

SystemCallPlan g_plan;
std::vector<std::string>& Trace() {
  static auto* trace = new std::vector<std::string>;
  return *trace;
}

// Paths of the open descriptors that were opened here.
std::map<int, std::string>& OpenFiles() {
  static auto* files = new std::map<int, std::string>;
  return *files;
}

// Counts a call. False when it shall fail; errno says how.
bool Enter(const std::string& what) {
  Trace().push_back(what);
  const int number = static_cast<int>(Trace().size());
  if (number == g_plan.kill_at) raise(SIGKILL);
  if (number != g_plan.fail_at) return true;
  errno = g_plan.error;
  return false;
}

}  // namespace

void PlanSystemCalls(const SystemCallPlan& plan) {
  g_plan = plan;
  Trace().clear();
}

const std::vector<std::string>& SystemCallTrace() { return Trace(); }

}  // namespace meshfold::testing

using meshfold::testing::Enter;
using meshfold::testing::OpenFiles;

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
    if (!Enter(std::string("create ") + path)) return -1;
  }
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  if (fd >= 0) OpenFiles()[fd] = path;
  return fd;
}

ssize_t write(int fd, const void* bytes, size_t count) {
  auto file = OpenFiles().find(fd);  // gtest's output is none of ours
  if (file != OpenFiles().end() && !Enter("write " + file->second)) return -1;
  return syscall(SYS_write, fd, bytes, count);
}

int fsync(int fd) {
  if (!Enter("fsync " + OpenFiles()[fd])) return -1;
  return 0;  // the kernel outlives every test here, and the disk is slow
}

int close(int fd) {
  OpenFiles().erase(fd);
  return static_cast<int>(syscall(SYS_close, fd));
}

int rename(const char* from, const char* to) noexcept {
  if (!Enter(std::string("rename ") + from + " " + to)) return -1;
  return static_cast<int>(syscall(SYS_rename, from, to));
}

int mkdir(const char* path, mode_t mode) noexcept {
  // What is there already is not made: MakeDirs asks for all parents.
  if (access(path, F_OK) != 0 && !Enter(std::string("mkdir ") + path)) return -1;
  return static_cast<int>(syscall(SYS_mkdir, path, mode));
}

int unlink(const char* path) noexcept {
  if (!Enter(std::string("unlink ") + path)) return -1;
  return static_cast<int>(syscall(SYS_unlink, path));
}

int remove(const char* path) noexcept {
  if (!Enter(std::string("remove ") + path)) return -1;
  const int result = static_cast<int>(syscall(SYS_unlink, path));
  return result != 0 && errno == EISDIR ? static_cast<int>(syscall(SYS_rmdir, path)) : result;
}

}  // extern "C"
