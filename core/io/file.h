// Files: whole reads, read-only mappings, durable writes, listings.
//
// Every failure is a Status whose message names the operation, the path and the system's reason. A
// full disk, quota or file size limit is ResourceExhausted, an absent file NotFound. A durable
// write leaves either the old file or the whole new one, whenever the process or the machine stops.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace meshfold {

// The Status of a failed system call: "[File] cannot <what> '<path>': <strerror>".
absl::Status FileError(int error_number, absl::string_view what, absl::string_view path);

// True when `path` exists (links followed); false also when it cannot be looked at.
bool FileExists(const std::string& path);
bool IsDirectory(const std::string& path);

// Bytes of a regular file.
absl::StatusOr<int64_t> FileSize(const std::string& path);

// The whole file; ResourceExhausted when it is longer than `max_bytes`.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = INT64_MAX);

// Writes all of `bytes` to the open file `fd`, whatever the system writes at a time. `path` is for
// the message. Use DurableFileWriter or WriteFile instead where the file has a name.
absl::Status WriteAll(int fd, absl::Span<const char> bytes, absl::string_view path);

// Replaces `path` by `contents`, durably (see DurableFileWriter).
absl::Status WriteFile(const std::string& path, absl::string_view contents);

// Joins two path parts by one '/'; an absolute `tail` stays as it is.
std::string JoinPath(absl::string_view head, absl::string_view tail);
// Part of `path` before the last '/', "." when there is none, and part after it.
std::string DirName(absl::string_view path);
std::string BaseName(absl::string_view path);

// Makes `path` and its parents; OK when it is there already.
absl::Status MakeDirs(const std::string& path);

// Deletes a file, or a directory with all it holds (links are removed, not followed). OK when
// absent.
absl::Status RemoveTree(const std::string& path);

// Makes the entries of a directory durable (fsync on the directory).
absl::Status SyncDirectory(const std::string& path);

// Renames `from` to `to`, replacing a file at `to`, and makes the rename durable.
absl::Status RenameDurably(const std::string& from, const std::string& to);

// Names (not paths) in a directory without "." and "..", in byte order.
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// A read-only mapping of a whole file; unmapped by the destructor. Safe to read from many threads.
// Cutting the file while it is mapped kills the reader (SIGBUS): writers here never do, they
// rename.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const char> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, absl::Span<const char> bytes);

  std::string path_;
  absl::Span<const char> bytes_;
};

// Streams a file that appears under its name only when it is whole and on disk: bytes go to a
// temporary file beside it; Close flushes it (fsync), renames it and flushes the directory. After
// an error, and when destroyed before Close, the temporary file is removed and `path` is as before.
// Single-threaded.
class DurableFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<DurableFileWriter>> Create(const std::string& path);
  ~DurableFileWriter();
  DurableFileWriter(const DurableFileWriter&) = delete;
  DurableFileWriter& operator=(const DurableFileWriter&) = delete;

  // Appends bytes, buffered by up to a mebibyte. Once an Append fails, all that follow fail too.
  absl::Status Append(absl::Span<const char> bytes);
  // A literal would count its final NUL: pass absl::string_view(literal).
  template <size_t N>
  absl::Status Append(const char (&literal)[N]) = delete;
  // Makes the file durable under its name. No Append after it.
  absl::Status Close();

  int64_t bytes_appended() const { return bytes_appended_; }
  const std::string& path() const { return path_; }

 private:
  DurableFileWriter(std::string path, std::string temporary_path, int fd);
  absl::Status Flush();
  absl::Status CloseTemporary();
  void Discard();

  std::string path_, temporary_path_;
  int fd_;  // -1 after Close or an error
  std::string buffer_;
  int64_t bytes_appended_ = 0;
  absl::Status status_;
};

}  // namespace meshfold
