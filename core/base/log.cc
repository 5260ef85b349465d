#include "core/base/log.h"

#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"

namespace meshfold {
namespace {

// A logger that never gets a file must not grow.
constexpr size_t kMaxEarlyBytes = 1 << 14;

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

}  // namespace

Logger::Logger(std::string tag, LogLevel level) : tag_(std::move(tag)), level_(level) {}

Logger::~Logger() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status Logger::OpenFile(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot open log file ", path, ": ", std::strerror(errno)));
  }
  std::lock_guard<std::mutex> lock(mutex_);
  if (file_ != nullptr) std::fclose(file_);
  file_ = file;
  std::fputs(early_lines_.c_str(), file_);
  std::fflush(file_);
  early_lines_.clear();
  return absl::OkStatus();
}

void Logger::Write(LogLevel level, absl::string_view message) {
  std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char time_text[32];
  std::strftime(time_text, sizeof(time_text), "%Y-%m-%d %H:%M:%S", &local);
  std::string prefix = tag_.empty() ? std::string() : absl::StrCat("[", tag_, "] ");
  std::lock_guard<std::mutex> lock(mutex_);
  std::string line = absl::StrCat(time_text, " ", LevelName(level), " ", prefix, message, "\n");
  if (file_ != nullptr) {
    std::fputs(line.c_str(), file_);
    std::fflush(file_);
  } else if (early_lines_.size() + line.size() <= kMaxEarlyBytes) {
    early_lines_ += line;
  }
  if (level < level_) return;
  // Plain information reads as sentences; only trouble is labelled.
  std::string label = level >= LogLevel::kWarning ? absl::StrCat(LevelName(level), ": ") : "";
  std::fprintf(stderr, "%s%s%.*s\n", prefix.c_str(), label.c_str(),
               static_cast<int>(message.size()), message.data());
}

}  // namespace meshfold
