#include "core/data/text_corpus.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/base/status_macros.h"
#include "core/data/tokenizer.h"
#include "core/io/file.h"
#include "core/io/glob.h"
#include "core/io/gzip.h"

namespace meshfold {
namespace {

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& pattern) {
  if (pattern == kPythonStdlib) return FindPythonStdlib();
  MF_ASSIGN_OR_RETURN(std::vector<std::string> paths, Glob(pattern));
  paths.erase(std::remove_if(paths.begin(), paths.end(), IsDirectory), paths.end());
  return paths;
}

// Directories that may hold a standard library, best first.
absl::StatusOr<std::vector<std::string>> StdlibCandidates() {
  std::vector<std::string> prefixes;
  const char* path = std::getenv("PATH");
  for (absl::string_view bin : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    std::string python = JoinPath(bin, "python3");
    if (bin.empty() || !FileExists(python)) continue;
    // The library stands beside the program that a virtual environment links to.
    auto free_text = [](char* text) { std::free(text); };
    std::unique_ptr<char, decltype(free_text)> real(realpath(python.c_str(), nullptr), free_text);
    if (real != nullptr) prefixes.push_back(DirName(DirName(real.get())));
  }
  prefixes.push_back("/usr");
  prefixes.push_back("/usr/local");
  std::vector<std::string> candidates;
  for (const std::string& prefix : prefixes) {
    MF_ASSIGN_OR_RETURN(std::vector<std::string> found, Glob(JoinPath(prefix, "lib/python3*")));
    // "python3.9" before "python3.11": shorter names are older.
    std::sort(found.begin(), found.end(), [](const std::string& a, const std::string& b) {
      return a.size() != b.size() ? a.size() > b.size() : a > b;
    });
    candidates.insert(candidates.end(), found.begin(), found.end());
  }
  return candidates;
}

// True where a component of `path`, relative to the library, holds no source worth reading.
bool IsSkipped(absl::string_view path) {
  for (absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "test" || part == "tests" || part == "idle_test" || part == "lib2to3" ||
        part == "dist-packages" || part == "site-packages") {
      return true;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FindPythonStdlib() {
  MF_ASSIGN_OR_RETURN(std::vector<std::string> candidates, StdlibCandidates());
  for (const std::string& candidate : candidates) {
    if (!FileExists(JoinPath(candidate, "os.py"))) continue;
    MF_ASSIGN_OR_RETURN(std::vector<std::string> paths, Glob(JoinPath(candidate, "**/*.py")));
    paths.erase(std::remove_if(paths.begin(), paths.end(),
                               [&](const std::string& path) {
                                 return IsSkipped(absl::string_view(path).substr(candidate.size()));
                               }),
                paths.end());
    return paths;
  }
  return absl::NotFoundError(absl::StrCat(
      "[TextCorpus] no Python standard library: no os.py beside python3 on the PATH, nor in "
      "/usr/lib/python3* and /usr/local/lib/python3*; looked into ",
      candidates.size(), " directories"));
}

absl::StatusOr<std::shared_ptr<const TextCorpus>> TextCorpus::Open(
    const std::vector<std::string>& patterns, int64_t max_bytes) {
  std::shared_ptr<TextCorpus> corpus(new TextCorpus());
  corpus->name_ = absl::StrJoin(patterns, ", ");
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    MF_ASSIGN_OR_RETURN(std::vector<std::string> paths, FilesOf(pattern));
    if (paths.empty()) {
      return absl::NotFoundError(absl::StrCat("[TextCorpus] no file matches '", pattern, "'"));
    }
    for (const std::string& path : paths) {
      if (!seen.insert(path).second) continue;
      int64_t left = max_bytes - static_cast<int64_t>(corpus->text_.size());
      MF_ASSIGN_OR_RETURN(std::string text,
                          IsGzipName(path) ? ReadGzipFile(path, left) : ReadFile(path, left));
      corpus->text_ += text;
      corpus->text_ += static_cast<char>(ByteTokenizer::kEos);
      corpus->ends_.push_back(static_cast<int64_t>(corpus->text_.size()));
    }
  }
  return std::shared_ptr<const TextCorpus>(std::move(corpus));
}

absl::Status TextCorpus::Read(int64_t i, int64_t begin, int64_t count, int32_t* out) const {
  MF_CHECK(begin >= 0 && count >= 0 && begin + count <= document_length(i)) << " " << name_;
  const char* text = text_.data() + BeginOf(i) + begin;
  for (int64_t t = 0; t < count; ++t) out[t] = static_cast<unsigned char>(text[t]);
  return absl::OkStatus();
}

}  // namespace meshfold
