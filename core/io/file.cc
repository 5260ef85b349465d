#include "core/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace meshfold {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

absl::StatusCode CodeOf(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case ENOTDIR:
    case EISDIR:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::ErrnoToStatusCode(error_number);
  }
}

// Closes a descriptor when the scope ends.
class ScopedFd {
 public:
  explicit ScopedFd(int fd) : fd_(fd) {}
  ~ScopedFd() {
    if (fd_ >= 0) close(fd_);
  }
  ScopedFd(const ScopedFd&) = delete;
  ScopedFd& operator=(const ScopedFd&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// Opens a regular file for reading and tells its size.
absl::StatusOr<int> OpenForReading(const std::string& path, int64_t& size) {
  // Not blocking, so that a named pipe is refused below and not waited for.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return FileError(errno, "open", path);
  struct stat info;
  if (fstat(fd, &info) != 0) {
    int error = errno;
    close(fd);
    return FileError(error, "look at", path);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("[File] cannot read '", path, "': not a regular file"));
  }
  size = info.st_size;
  return fd;
}

}  // namespace

absl::Status FileError(int error_number, absl::string_view what, absl::string_view path) {
  return absl::Status(CodeOf(error_number),
                      absl::StrCat("[File] cannot ", what, " '", path,
                                   "': ", std::generic_category().message(error_number)));
}

bool FileExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<int64_t> FileSize(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return FileError(errno, "look at", path);
  return static_cast<int64_t>(info.st_size);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  int64_t size = 0;
  MF_ASSIGN_OR_RETURN(int fd, OpenForReading(path, size));
  ScopedFd file(fd);
  std::string contents;
  // Read until the end and not until `size`: files of /proc say 0.
  std::string chunk(std::clamp<int64_t>(size + 1, 4096, kBufferBytes), '\0');
  while (true) {
    ssize_t count = read(file.get(), chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, "read", path);
    if (count == 0) return contents;
    if (static_cast<int64_t>(contents.size()) + count > max_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("[File] '", path, "' is longer than ", max_bytes, " bytes"));
    }
    contents.append(chunk.data(), count);
  }
}

absl::Status WriteAll(int fd, absl::Span<const char> bytes, absl::string_view path) {
  while (!bytes.empty()) {
    ssize_t count = write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, "write", path);
    bytes.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, absl::string_view contents) {
  MF_ASSIGN_OR_RETURN(std::unique_ptr<DurableFileWriter> writer, DurableFileWriter::Create(path));
  MF_RETURN_IF_ERROR(writer->Append(contents));
  return writer->Close();
}

std::string JoinPath(absl::string_view head, absl::string_view tail) {
  if (head.empty() || absl::StartsWith(tail, "/")) return std::string(tail);
  return absl::StrCat(head, absl::EndsWith(head, "/") ? "" : "/", tail);
}

std::string DirName(absl::string_view path) {
  size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

std::string BaseName(absl::string_view path) {
  size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

absl::Status MakeDirs(const std::string& path) {
  for (size_t at = 0; at != std::string::npos;) {
    at = path.find('/', at + 1);
    std::string part = path.substr(0, at);
    // A parent may be unwritable or on a read-only mount and still be there: ask only afterwards.
    if (part.empty() || mkdir(part.c_str(), 0777) == 0) continue;
    int error = errno;
    if (!IsDirectory(part)) return FileError(error, "make directory", part);
  }
  return absl::OkStatus();
}

absl::Status RemoveTree(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : FileError(errno, "look at", path);
  }
  if (S_ISDIR(info.st_mode)) {
    MF_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(path));
    for (const std::string& name : names) MF_RETURN_IF_ERROR(RemoveTree(JoinPath(path, name)));
  }
  if (remove(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "remove", path);
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  ScopedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return FileError(errno, "open directory", path);
  // EINVAL: a file system without directory sync.
  if (fsync(directory.get()) != 0 && errno != EINVAL) return FileError(errno, "sync", path);
  return absl::OkStatus();
}

absl::Status RenameDurably(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) {
    return FileError(errno, absl::StrCat("rename '", from, "' to"), to);
  }
  return SyncDirectory(DirName(to));
}

absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path) {
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) return FileError(errno, "list", path);
  std::vector<std::string> names;
  errno = 0;
  while (dirent* entry = readdir(directory)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  int error = errno;
  closedir(directory);
  if (error != 0) return FileError(error, "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

MappedFile::MappedFile(std::string path, absl::Span<const char> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  int64_t size = 0;
  MF_ASSIGN_OR_RETURN(int fd, OpenForReading(path, size));
  ScopedFd file(fd);
  absl::Span<const char> bytes;
  if (size > 0) {  // an empty mapping is refused by the system
    void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
    if (address == MAP_FAILED) return FileError(errno, "map", path);
    bytes = absl::Span<const char>(static_cast<const char*>(address), size);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(path, bytes));
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

DurableFileWriter::DurableFileWriter(std::string path, std::string temporary_path, int fd)
    : path_(std::move(path)), temporary_path_(std::move(temporary_path)), fd_(fd) {}

absl::StatusOr<std::unique_ptr<DurableFileWriter>> DurableFileWriter::Create(
    const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    std::string temporary = absl::StrCat(path, ".tmp", getpid(), "_", attempt);
    int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      return std::unique_ptr<DurableFileWriter>(
          new DurableFileWriter(path, std::move(temporary), fd));
    }
    // Another writer of this process, or what a killed one left.
    if (errno != EEXIST || attempt == 1000) return FileError(errno, "create", path);
  }
}

DurableFileWriter::~DurableFileWriter() { Discard(); }

absl::Status DurableFileWriter::Append(absl::Span<const char> bytes) {
  MF_RETURN_IF_ERROR(status_);
  MF_CHECK_GE(fd_, 0) << " Append after Close of " << path_;
  bytes_appended_ += bytes.size();
  if (buffer_.size() + bytes.size() < kBufferBytes) {
    buffer_.append(bytes.data(), bytes.size());
    return absl::OkStatus();
  }
  status_ = Flush();
  if (status_.ok()) status_ = WriteAll(fd_, bytes, path_);
  if (!status_.ok()) Discard();
  return status_;
}

absl::Status DurableFileWriter::Close() {
  MF_RETURN_IF_ERROR(status_);
  MF_CHECK_GE(fd_, 0) << " second Close of " << path_;
  status_ = CloseTemporary();
  if (status_.ok()) status_ = RenameDurably(temporary_path_, path_);
  if (!status_.ok()) {
    Discard();
    return status_;
  }
  temporary_path_.clear();
  return absl::OkStatus();
}

absl::Status DurableFileWriter::Flush() {
  MF_RETURN_IF_ERROR(WriteAll(fd_, buffer_, path_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status DurableFileWriter::CloseTemporary() {
  MF_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return FileError(errno, "sync", path_);
  // Network file systems report a full disk here.
  if (close(std::exchange(fd_, -1)) != 0) return FileError(errno, "close", path_);
  return absl::OkStatus();
}

void DurableFileWriter::Discard() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  if (!temporary_path_.empty()) unlink(temporary_path_.c_str());
  temporary_path_.clear();
}

}  // namespace meshfold
