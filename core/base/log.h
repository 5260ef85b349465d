// Log lines with a level, a time and the rank's tag, to stderr and optionally to a file.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace meshfold {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// A sink owned by a run and passed down; there is no process-wide logger. Thread-safe.
class Logger {
 public:
  // `tag` leads every line ("rank 3"), empty for a single process. Lines below `level` are dropped
  // from stderr; the file, when opened, gets everything.
  explicit Logger(std::string tag = "", LogLevel level = LogLevel::kInfo);
  ~Logger();
  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // Also appends every line to `path` (created when absent), first those written so far: a run says
  // what it resumes from before it has a place to write.
  absl::Status OpenFile(const std::string& path);

  // One line, without a trailing newline.
  void Write(LogLevel level, absl::string_view message);
  void Info(absl::string_view message) { Write(LogLevel::kInfo, message); }
  void Warning(absl::string_view message) { Write(LogLevel::kWarning, message); }
  void Error(absl::string_view message) { Write(LogLevel::kError, message); }

 private:
  std::string tag_;
  LogLevel level_;
  std::mutex mutex_;
  std::FILE* file_ = nullptr;
  std::string early_lines_;  // written before a file was opened, the first of them
};

}  // namespace meshfold
