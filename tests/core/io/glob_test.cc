#include "core/io/glob.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

using GlobTest = ScratchTest;

TEST_F(GlobTest, AnswersInByteOrder) {
  for (const char* name : {"b.txt", "a.txt", "B.txt", "c.py", "sub/d.txt", "sub/deep/e.txt"}) {
    Put(name, "x");
  }
  auto expect = [&](const std::string& pattern, std::vector<std::string> names) {
    for (std::string& name : names) name = Path(name);
    absl::StatusOr<std::vector<std::string>> paths = Glob(Path(pattern));
    MF_ASSERT_OK(paths);
    EXPECT_EQ(*paths, names) << pattern;
  };
  expect("*.txt", {"B.txt", "a.txt", "b.txt"});
  expect("[ab].txt", {"a.txt", "b.txt"});
  expect("nothing*", {});
  expect("a.txt", {"a.txt"});
  expect("**/*.txt", {"B.txt", "a.txt", "b.txt", "sub/d.txt", "sub/deep/e.txt"});
  expect("s*/**/*.txt", {"sub/d.txt", "sub/deep/e.txt"});
  expect("**/deep/**/*", {"sub/deep/e.txt"});
}

TEST_F(GlobTest, TakesOddDirectoryNamesLiterally) {
  Put("odd[1]*/x.txt", "x");
  Put("odd1/y.txt", "y");
  absl::StatusOr<std::vector<std::string>> paths = Glob(Path("**/x.txt"));
  MF_ASSERT_OK(paths);
  EXPECT_EQ(*paths, std::vector<std::string>({Path("odd[1]*/x.txt")}));
}

TEST_F(GlobTest, DoesNotFollowLinksInARecursion) {
  Put("sub/x.txt", "x");
  ASSERT_EQ(symlink("..", Path("sub/loop").c_str()), 0);
  absl::StatusOr<std::vector<std::string>> paths = Glob(Path("**/x.txt"));
  MF_ASSERT_OK(paths);
  EXPECT_EQ(paths->size(), 1u);
}

}  // namespace
}  // namespace meshfold
