#include "core/io/glob.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"

namespace meshfold {
namespace {

// The part of `pattern` before a "**" component and the part after it, or false.
bool SplitAtDoubleStar(const std::string& pattern, std::string& head, std::string& tail) {
  for (size_t at = pattern.find("**"); at != std::string::npos; at = pattern.find("**", at + 1)) {
    bool starts = at == 0 || pattern[at - 1] == '/';
    bool ends = at + 2 == pattern.size() || pattern[at + 2] == '/';
    if (!starts || !ends) continue;
    head = at == 0 ? "." : at == 1 ? "/" : pattern.substr(0, at - 1);
    tail = at + 2 == pattern.size() ? "*" : pattern.substr(at + 3);
    return true;
  }
  return false;
}

std::string EscapePattern(absl::string_view path) {
  std::string escaped;
  for (char c : path) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// Matches a pattern without "**".
absl::Status GlobFlat(const std::string& pattern, std::vector<std::string>& paths) {
  glob_t matches = {};
  int error = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  for (size_t i = 0; error == 0 && i < matches.gl_pathc; ++i) paths.push_back(matches.gl_pathv[i]);
  globfree(&matches);
  if (error == 0 || error == GLOB_NOMATCH) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "[File] cannot list '", pattern, "': ", error == GLOB_NOSPACE ? "no memory" : "read error"));
}

// Adds `root` and every directory below it.
absl::Status CollectDirectories(const std::string& root, std::vector<std::string>& directories) {
  directories.push_back(root);
  for (size_t next = directories.size() - 1; next < directories.size(); ++next) {
    std::string parent = directories[next];
    MF_ASSIGN_OR_RETURN(std::vector<std::string> names, ListDirectory(parent));
    for (const std::string& name : names) {
      std::string path = JoinPath(parent, name);
      struct stat info;
      if (lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) directories.push_back(path);
    }
  }
  return absl::OkStatus();
}

absl::Status GlobInto(const std::string& pattern, std::vector<std::string>& paths) {
  std::string head, tail;
  if (!SplitAtDoubleStar(pattern, head, tail)) return GlobFlat(pattern, paths);
  std::vector<std::string> roots, directories;
  MF_RETURN_IF_ERROR(GlobFlat(head, roots));
  for (const std::string& root : roots) {
    if (IsDirectory(root)) MF_RETURN_IF_ERROR(CollectDirectories(root, directories));
  }
  for (const std::string& directory : directories) {
    MF_RETURN_IF_ERROR(GlobInto(JoinPath(EscapePattern(directory), tail), paths));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> Glob(const std::string& pattern) {
  std::vector<std::string> paths;
  MF_RETURN_IF_ERROR(GlobInto(pattern, paths));
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

}  // namespace meshfold
