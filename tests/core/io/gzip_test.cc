#include "core/io/gzip.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

using GzipTest = ScratchTest;

// One gzip member.
std::string Compress(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = out.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

TEST_F(GzipTest, ReadsAllMembers) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += absl::StrCat("line ", i, "\n");
  absl::StatusOr<std::string> read = ReadGzipFile(Put("x.gz", Compress(text)), 1 << 20);
  MF_ASSERT_OK(read);
  EXPECT_TRUE(*read == text);
  read = ReadGzipFile(Put("two.gz", Compress("one ") + Compress("two")), 100);
  MF_ASSERT_OK(read);
  EXPECT_EQ(*read, "one two");
}

TEST_F(GzipTest, RefusesMoreThanTheLimit) {
  std::string path = Put("bomb.gz", Compress(std::string(10 << 20, '0')));
  EXPECT_TRUE(FailsWith(ReadGzipFile(path, 1 << 20), absl::StatusCode::kResourceExhausted, path));
}

TEST_F(GzipTest, RefusesDamagedFiles) {
  std::string bytes = Compress("some text that is long enough to be cut in the middle of it");
  std::string cut = Put("cut.gz", absl::string_view(bytes).substr(0, bytes.size() - 10));
  EXPECT_TRUE(FailsWith(ReadGzipFile(cut, 1000), absl::StatusCode::kDataLoss, "ends early"));
  EXPECT_TRUE(FailsWith(ReadGzipFile(Put("empty.gz", ""), 1000), absl::StatusCode::kDataLoss,
                        "ends early"));
  bytes[bytes.size() - 8] ^= 1;  // the checksum
  EXPECT_TRUE(FailsWith(ReadGzipFile(Put("bad.gz", bytes), 1000), absl::StatusCode::kDataLoss,
                        "incorrect data check"));
  EXPECT_TRUE(FailsWith(ReadGzipFile(Put("text.gz", "plain"), 1000), absl::StatusCode::kDataLoss,
                        "damaged"));
}

TEST(GzipNameTest, KnowsGzipAndDictzip) {
  EXPECT_TRUE(IsGzipName("a.txt.gz"));
  EXPECT_TRUE(IsGzipName("jargon.dict.dz"));
  EXPECT_FALSE(IsGzipName("a.txt"));
}

}  // namespace
}  // namespace meshfold
