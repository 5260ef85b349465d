#include "core/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

using FileTest = ScratchTest;

// Limits the size of files that this process writes, for a scope: a full disk in small.
class ScopedFileLimit {
 public:
  explicit ScopedFileLimit(rlim_t bytes) {
    previous_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &previous_);
    rlimit limit = {bytes, previous_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~ScopedFileLimit() {
    setrlimit(RLIMIT_FSIZE, &previous_);
    std::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_;
  void (*previous_handler_)(int);
};

TEST_F(FileTest, WritesAndReadsBackBytesWithNul) {
  std::string contents("a\0b\n\xff", 5);
  std::string path = Put("file", contents);
  absl::StatusOr<std::string> read = ReadFile(path);
  MF_ASSERT_OK(read);
  EXPECT_EQ(*read, contents);
  EXPECT_EQ(*FileSize(path), 5);
  EXPECT_TRUE(FailsWith(ReadFile(path, 4), absl::StatusCode::kResourceExhausted, path));
  MF_EXPECT_OK(ReadFile(path, 5));
}

TEST_F(FileTest, ReadsFilesLongerThanOneRead) {
  std::string contents;
  for (int i = 0; i < 700'000; ++i) contents += absl::StrCat(i, " ");
  absl::StatusOr<std::string> read = ReadFile(Put("file", contents));
  MF_ASSERT_OK(read);
  EXPECT_TRUE(*read == contents);
}

TEST_F(FileTest, MessagesNameThePathAndTheReason) {
  std::string path = Path("absent");
  EXPECT_TRUE(FailsWith(ReadFile(path), absl::StatusCode::kNotFound, path));
  EXPECT_TRUE(FailsWith(ReadFile(path), absl::StatusCode::kNotFound, "No such file or directory"));
  EXPECT_TRUE(FailsWith(MappedFile::Open(path), absl::StatusCode::kNotFound, path));
  EXPECT_TRUE(FailsWith(FileSize(path), absl::StatusCode::kNotFound, path));
  EXPECT_TRUE(FailsWith(ListDirectory(path), absl::StatusCode::kNotFound, path));
  EXPECT_TRUE(FailsWith(ReadFile(directory()), absl::StatusCode::kFailedPrecondition,
                        "not a regular file"));
  EXPECT_TRUE(FailsWith(WriteFile(Path("absent/file"), "x"), absl::StatusCode::kNotFound, path));
}

TEST_F(FileTest, NamedPipesAreRefusedWithoutWaiting) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0666), 0);
  EXPECT_TRUE(FailsWith(ReadFile(Path("pipe")), absl::StatusCode::kFailedPrecondition,
                        "not a regular file"));
}

TEST_F(FileTest, MapsWholeFilesAndEmptyOnes) {
  auto file = MappedFile::Open(Put("file", "mapped"));
  MF_ASSERT_OK(file);
  EXPECT_EQ(std::string((*file)->bytes().begin(), (*file)->bytes().end()), "mapped");
  auto empty = MappedFile::Open(Put("empty", ""));
  MF_ASSERT_OK(empty);
  EXPECT_TRUE((*empty)->bytes().empty());
}

TEST_F(FileTest, DurableWriterShowsTheFileOnlyAfterClose) {
  std::string path = Put("file", "old");
  auto writer = DurableFileWriter::Create(path);
  MF_ASSERT_OK(writer);
  MF_ASSERT_OK((*writer)->Append(absl::string_view("new ")));
  MF_ASSERT_OK((*writer)->Append(absl::string_view("text")));
  EXPECT_EQ((*writer)->bytes_appended(), 8);
  EXPECT_EQ(*ReadFile(path), "old");
  MF_ASSERT_OK((*writer)->Close());
  EXPECT_EQ(*ReadFile(path), "new text");
  EXPECT_EQ(ListDirectory(directory())->size(), 1u);
}

TEST_F(FileTest, DurableWriterJoinsSmallAndLargeAppends) {
  std::string path = Path("file"), expected;
  auto writer = DurableFileWriter::Create(path);
  MF_ASSERT_OK(writer);
  for (size_t size : {10u, 1u << 20, 7u, (3u << 20) + 1, 0u, 1u << 19, 1u << 19, 5u}) {
    std::string piece(size, static_cast<char>('a' + expected.size() % 26));
    MF_ASSERT_OK((*writer)->Append(piece));
    expected += piece;
  }
  MF_ASSERT_OK((*writer)->Close());
  EXPECT_TRUE(*ReadFile(path) == expected);
}

TEST_F(FileTest, DestroyedWriterLeavesTheOldFileAndNoOther) {
  std::string path = Put("file", "old");
  {
    auto writer = DurableFileWriter::Create(path);
    MF_ASSERT_OK(writer);
    MF_ASSERT_OK((*writer)->Append(absl::string_view("half")));
  }
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_EQ(*ListDirectory(directory()), std::vector<std::string>({"file"}));
}

TEST_F(FileTest, TwoWritersOfOnePathDoNotMix) {
  std::string path = Path("file");
  auto a = DurableFileWriter::Create(path), b = DurableFileWriter::Create(path);
  MF_ASSERT_OK(a);
  MF_ASSERT_OK(b);
  MF_ASSERT_OK((*a)->Append(absl::string_view("aaaa")));
  MF_ASSERT_OK((*b)->Append(absl::string_view("bb")));
  MF_ASSERT_OK((*a)->Close());
  EXPECT_EQ(*ReadFile(path), "aaaa");
  MF_ASSERT_OK((*b)->Close());
  EXPECT_EQ(*ReadFile(path), "bb");
  EXPECT_EQ(*ListDirectory(directory()), std::vector<std::string>({"file"}));
}

TEST_F(FileTest, FullDiskIsAnErrorWithThePathAndLeavesNothing) {
  std::string path = Put("file", "old");
  std::string piece(3 << 20, 'x');  // larger than the writer's buffer
  {
    ScopedFileLimit limit(1 << 20);
    auto writer = DurableFileWriter::Create(path);
    MF_ASSERT_OK(writer);
    absl::Status failed = (*writer)->Append(piece);
    EXPECT_TRUE(FailsWith(failed, absl::StatusCode::kResourceExhausted, path));
    EXPECT_TRUE(FailsWith(failed, absl::StatusCode::kResourceExhausted, "File too large"));
    EXPECT_EQ((*writer)->Append(absl::string_view("more")), failed) << "the error must stay";
    EXPECT_EQ((*writer)->Close(), failed);
  }
  EXPECT_EQ(*ReadFile(path), "old");
  EXPECT_EQ(*ListDirectory(directory()), std::vector<std::string>({"file"}));
}

TEST_F(FileTest, FullDiskAtCloseIsAnErrorToo) {
  std::string path = Path("file");
  {
    ScopedFileLimit limit(10);
    EXPECT_TRUE(FailsWith(WriteFile(path, "longer than ten bytes"),
                          absl::StatusCode::kResourceExhausted, path));
  }
  EXPECT_TRUE(ListDirectory(directory())->empty());
}

TEST_F(FileTest, DeviceWithoutSpaceIsResourceExhausted) {
  int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  absl::Status status = WriteAll(fd, absl::string_view("bytes"), "/dev/full");
  close(fd);
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted,
                        "cannot write '/dev/full': No space left on device"));
}

TEST_F(FileTest, MakesNestedDirectoriesAndRemovesTrees) {
  MF_ASSERT_OK(MakeDirs(Path("a/b//c")));
  MF_ASSERT_OK(MakeDirs(Path("a/b/c/")));
  EXPECT_TRUE(IsDirectory(Path("a/b/c")));
  Put("a/b/file", "x");
  std::string outside = Put("outside/kept", "kept");
  ASSERT_EQ(symlink(Path("outside").c_str(), Path("a/link").c_str()), 0);
  MF_ASSERT_OK(RemoveTree(Path("a")));
  EXPECT_FALSE(FileExists(Path("a")));
  EXPECT_TRUE(FileExists(outside)) << "a link must be removed, not followed";
  MF_EXPECT_OK(RemoveTree(Path("a")));
  EXPECT_TRUE(
      FailsWith(MakeDirs(JoinPath(outside, "x")), absl::StatusCode::kAlreadyExists, outside));
}

TEST_F(FileTest, RenamesDurably) {
  std::string from = Put("from", "new"), to = Put("to", "old");
  MF_ASSERT_OK(RenameDurably(from, to));
  EXPECT_EQ(*ReadFile(to), "new");
  EXPECT_FALSE(FileExists(from));
  EXPECT_TRUE(FailsWith(RenameDurably(from, to), absl::StatusCode::kNotFound, from));
}

TEST(PathTest, JoinsAndSplits) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
  EXPECT_EQ(DirName("a/b/c"), "a/b");
  EXPECT_EQ(DirName("/c"), "/");
  EXPECT_EQ(DirName("c"), ".");
  EXPECT_EQ(BaseName("a/b/c"), "c");
  EXPECT_EQ(BaseName("c"), "c");
}

}  // namespace
}  // namespace meshfold
