#include "core/data/text_corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/data/tokenizer.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

class TextCorpusTest : public ScratchTest {
 protected:
  // Document `i` as text, separator included.
  static std::string Text(const Dataset& corpus, int64_t i) {
    return *ByteTokenizer().Decode(*ReadDocument(corpus, i));
  }
};

TEST_F(TextCorpusTest, OneDocumentAFileInByteOrder) {
  Put("b.txt", "bee");
  Put("a.txt", "ay");
  Put("B.txt", "");
  Put("c.py", "not matched");
  ASSERT_TRUE(MakeDirs(Path("d.txt")).ok()) << "directories are passed over";
  auto corpus = TextCorpus::Open({Path("*.txt")});
  MF_ASSERT_OK(corpus);
  ASSERT_EQ((*corpus)->num_documents(), 3);
  EXPECT_EQ(Text(**corpus, 0), std::string("\0", 1));
  EXPECT_EQ(Text(**corpus, 1), std::string("ay\0", 3));
  EXPECT_EQ(Text(**corpus, 2), std::string("bee\0", 4));
  EXPECT_EQ((*corpus)->vocab_bound(), 256);
}

TEST_F(TextCorpusTest, ReadsRangesAndHighBytes) {
  Put("a.txt", "\xff\x80z");
  auto corpus = TextCorpus::Open({Path("a.txt")});
  MF_ASSERT_OK(corpus);
  std::vector<int32_t> tokens(2);
  MF_ASSERT_OK((*corpus)->Read(0, 1, 2, tokens.data()));
  EXPECT_EQ(tokens, std::vector<int32_t>({128, 'z'}));
}

TEST_F(TextCorpusTest, SeveralPatternsCountEachFileOnce) {
  Put("a.txt", "a");
  Put("b.txt", "b");
  auto corpus = TextCorpus::Open({Path("b*"), Path("*.txt")});
  MF_ASSERT_OK(corpus);
  ASSERT_EQ((*corpus)->num_documents(), 2);
  EXPECT_EQ(Text(**corpus, 0)[0], 'b');
  EXPECT_EQ(Text(**corpus, 1)[0], 'a');
}

TEST_F(TextCorpusTest, NoFileIsAnErrorWithThePattern) {
  EXPECT_TRUE(FailsWith(TextCorpus::Open({Path("*.txt")}), absl::StatusCode::kNotFound,
                        absl::StrCat("no file matches '", Path("*.txt"), "'")));
}

TEST_F(TextCorpusTest, TooLongACorpusIsAnError) {
  std::string path = Put("a.txt", "0123456789");
  EXPECT_TRUE(FailsWith(TextCorpus::Open({path}, 9), absl::StatusCode::kResourceExhausted, path));
  MF_EXPECT_OK(TextCorpus::Open({path}, 10));
}

TEST_F(TextCorpusTest, DecompressesByName) {
  // gzip -n of "hello".
  const unsigned char kHello[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
                                  0x03, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00, 0x86,
                                  0xa6, 0x10, 0x36, 0x05, 0x00, 0x00, 0x00};
  absl::string_view bytes(reinterpret_cast<const char*>(kHello), sizeof(kHello));
  Put("a.gz", bytes);
  Put("b.dict.dz", bytes);
  auto corpus = TextCorpus::Open({Path("*")});
  MF_ASSERT_OK(corpus);
  ASSERT_EQ((*corpus)->num_documents(), 2);
  EXPECT_EQ(Text(**corpus, 0), std::string("hello\0", 6));
  EXPECT_EQ(Text(**corpus, 1), std::string("hello\0", 6));
}

// Sets PATH for a scope.
class ScopedPath {
 public:
  explicit ScopedPath(const std::string& path) : previous_(std::getenv("PATH")) {
    setenv("PATH", path.c_str(), 1);
  }
  ~ScopedPath() { setenv("PATH", previous_.c_str(), 1); }

 private:
  std::string previous_;
};

TEST_F(TextCorpusTest, FindsTheLibraryBesideThePythonOnThePath) {
  Put("prefix/bin/python3.9", "");
  Put("prefix/lib/python3.9/os.py", "import sys\n");
  Put("prefix/lib/python3.9/json/decoder.py", "x");
  Put("prefix/lib/python3.9/test/test_os.py", "skipped");
  Put("prefix/lib/python3.9/json/tests/x.py", "skipped");
  Put("prefix/lib/python3.9/dist-packages/numpy.py", "skipped");
  Put("prefix/lib/python3.9/data.txt", "skipped");
  ASSERT_TRUE(MakeDirs(Path("venv/bin")).ok());
  ASSERT_EQ(symlink("../../prefix/bin/python3.9", Path("venv/bin/python3").c_str()), 0);
  ScopedPath scope(Path("venv/bin"));
  auto paths = FindPythonStdlib();
  MF_ASSERT_OK(paths);
  ASSERT_EQ(paths->size(), 2u);
  EXPECT_TRUE(absl::EndsWith((*paths)[0], "prefix/lib/python3.9/json/decoder.py"));
  EXPECT_TRUE(absl::EndsWith((*paths)[1], "prefix/lib/python3.9/os.py"));
  auto corpus = TextCorpus::Open({kPythonStdlib});
  MF_ASSERT_OK(corpus);
  EXPECT_EQ(Text(**corpus, 1), std::string("import sys\n\0", 12));
}

TEST_F(TextCorpusTest, EmbeddedCorpusIsThereAndTheSameTwice) {
  auto corpus = TextCorpus::Open({kPythonStdlib});
  if (absl::IsNotFound(corpus.status())) GTEST_SKIP() << "no Python on this machine";
  MF_ASSERT_OK(corpus);
  EXPECT_GT((*corpus)->num_documents(), 100);
  EXPECT_GT(NumTokens(**corpus), 1'000'000);
  auto again = TextCorpus::Open({kPythonStdlib});
  MF_ASSERT_OK(again);
  ASSERT_EQ((*again)->num_documents(), (*corpus)->num_documents());
  EXPECT_EQ(Text(**again, 50), Text(**corpus, 50));
}

}  // namespace
}  // namespace meshfold
