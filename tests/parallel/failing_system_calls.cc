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
#include <mutex>

namespace meshfold::testing {
namespace {

SystemCallPlan g_plan;
int g_count = 0;  // of the calls that the plan counts

// Guards all of this.
std::mutex& Mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::vector<std::string>& Trace() {
  static auto* trace = new std::vector<std::string>;
  return *trace;
}

// Paths of the open descriptors that were opened here.
std::map<int, std::string>& OpenFiles() {
  static auto* files = new std::map<int, std::string>;
  return *files;
}

// The path that `fd` was opened with here; empty: not here.
std::string PathOf(int fd) {
  std::lock_guard<std::mutex> lock(Mutex());
  auto file = OpenFiles().find(fd);
  return file != OpenFiles().end() ? file->second : "";
}

// Counts a call. False when it shall fail; errno says how.
bool Enter(const std::string& what) {
  std::lock_guard<std::mutex> lock(Mutex());
  Trace().push_back(what);
  if (what.find(g_plan.only) == std::string::npos) return true;
  const int number = ++g_count;
  if (number == g_plan.kill_at) raise(SIGKILL);
  if (number != g_plan.fail_at) return true;
  errno = g_plan.error;
  return false;
}

}  // namespace

void PlanSystemCalls(const SystemCallPlan& plan) {
  std::lock_guard<std::mutex> lock(Mutex());
  g_plan = plan;
  g_count = 0;
  Trace().clear();
}

const std::vector<std::string>& SystemCallTrace() { return Trace(); }

}  // namespace meshfold::testing

using meshfold::testing::Enter;
using meshfold::testing::Mutex;
using meshfold::testing::OpenFiles;
using meshfold::testing::PathOf;

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
  if (fd >= 0) {
    std::lock_guard<std::mutex> lock(Mutex());
    OpenFiles()[fd] = path;
  }
  return fd;
}

ssize_t write(int fd, const void* bytes, size_t count) {
  const std::string path = PathOf(fd);  // gtest's output is none of ours
  if (!path.empty() && !Enter("write " + path)) return -1;
  return syscall(SYS_write, fd, bytes, count);
}

int fsync(int fd) {
  if (!Enter("fsync " + PathOf(fd))) return -1;
  return 0;  // the kernel outlives every test here, and the disk is slow
}

int close(int fd) {
  {
    std::lock_guard<std::mutex> lock(Mutex());
    OpenFiles().erase(fd);
  }
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
