#include "core/data/indexed_dataset.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <string>
#include <vector>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

constexpr char kGoldens[] = "tests/core/data/testdata/";

using Documents = std::vector<std::vector<int32_t>>;

class IndexedDatasetTest : public ScratchTest {
 protected:
  static Documents ReadAll(const std::string& prefix) {
    auto dataset = IndexedDataset::Open(prefix);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    Documents documents;
    for (int64_t i = 0; i < (*dataset)->num_documents(); ++i) {
      documents.push_back(*ReadDocument(**dataset, i));
    }
    return documents;
  }
  static void Write(const std::string& prefix, const Documents& documents, int64_t vocab_size) {
    auto writer = IndexedDatasetWriter::Create(prefix, vocab_size);
    MF_ASSERT_OK(writer);
    for (const auto& document : documents) MF_ASSERT_OK((*writer)->AddDocument(document));
    MF_ASSERT_OK((*writer)->Close());
  }
};

TEST_F(IndexedDatasetTest, ReadsFilesOfMegatron) {
  EXPECT_EQ(ReadAll(absl::StrCat(kGoldens, "small")),
            (Documents{{5, 0, 7, 0}, {65498}, {1, 2, 3}}));
  EXPECT_EQ(ReadAll(absl::StrCat(kGoldens, "large")), (Documents{{70000, 4464}, {119546, 0, 1}}));
  EXPECT_EQ(ReadAll(absl::StrCat(kGoldens, "sequences")), (Documents{{1, 2, 3}, {4, 5, 6}}));
}

TEST_F(IndexedDatasetTest, WritesTheBytesOfMegatron) {
  Write(Path("small"), {{5, 0, 7, 0}, {65498}, {1, 2, 3}}, 65499);
  Write(Path("large"), {{70000, 4464}, {119546, 0, 1}}, 119547);
  for (const char* name : {"small.bin", "small.idx", "large.bin", "large.idx"}) {
    EXPECT_EQ(*ReadFile(Path(name)), *ReadFile(absl::StrCat(kGoldens, name))) << name;
  }
}

TEST_F(IndexedDatasetTest, TakesTheVocabularyFromItsMetaFile) {
  Write(Path("x"), {{1, 2}}, 300);
  EXPECT_EQ((*IndexedDataset::Open(Path("x")))->vocab_size(), 0);
  Put("x.meta.json", R"({"vocab_size": 300, "documents": 1})");
  EXPECT_EQ((*IndexedDataset::Open(Path("x")))->vocab_size(), 300);
  Put("x.meta.json", R"({"vocab_size": "300"})");
  EXPECT_TRUE(FailsWith(IndexedDataset::Open(Path("x")), absl::StatusCode::kInvalidArgument,
                        "x.meta.json"));
}

TEST_F(IndexedDatasetTest, LargeIdsDoNotWrap) {
  Write(Path("x"), {{70000}}, 119547);
  EXPECT_EQ(ReadAll(Path("x")), (Documents{{70000}}));
  Write(Path("y"), {{65534, 65535, 65536}}, 65537);
  EXPECT_EQ(ReadAll(Path("y")), (Documents{{65534, 65535, 65536}}));
  auto writer = IndexedDatasetWriter::Create(Path("z"), 50000);
  MF_ASSERT_OK(writer);
  MF_ASSERT_OK((*writer)->AddDocument({1}));
  EXPECT_TRUE(FailsWith((*writer)->AddDocument({1, 70000}), absl::StatusCode::kOutOfRange,
                        "id 70000 out of range [0, 50000) at token 1 of document 1"));
  EXPECT_TRUE(FailsWith((*writer)->AddDocument({-1}), absl::StatusCode::kOutOfRange, "id -1"));
}

TEST_F(IndexedDatasetTest, TypeFollowsTheVocabulary) {
  for (auto [vocab_size, bytes] : {std::pair<int64_t, int64_t>{65499, 2}, {65500, 4}}) {
    Write(Path("x"), {{1, 2, 3}}, vocab_size);
    EXPECT_EQ(*FileSize(Path("x.bin")), 3 * bytes) << vocab_size;
  }
  EXPECT_TRUE(FailsWith(IndexedDatasetWriter::Create(Path("x"), 0),
                        absl::StatusCode::kInvalidArgument, "vocabulary size 0"));
}

TEST_F(IndexedDatasetTest, EmptyDocumentsAndDatasets) {
  Write(Path("x"), {{}, {1}, {}}, 10);
  EXPECT_EQ(ReadAll(Path("x")), (Documents{{}, {1}, {}}));
  Write(Path("y"), {}, 10);
  EXPECT_EQ(ReadAll(Path("y")), Documents());
}

TEST_F(IndexedDatasetTest, ReadsRangesAcrossSequences) {
  auto dataset = IndexedDataset::Open(absl::StrCat(kGoldens, "sequences"));
  MF_ASSERT_OK(dataset);
  EXPECT_EQ((*dataset)->document_length(0), 3);
  std::vector<int32_t> tokens(2);
  MF_ASSERT_OK((*dataset)->Read(0, 1, 2, tokens.data()));
  EXPECT_EQ(tokens, std::vector<int32_t>({2, 3}));
  MF_ASSERT_OK((*dataset)->Read(0, 2, 1, tokens.data()));
  EXPECT_EQ(tokens[0], 3);
  MF_ASSERT_OK((*dataset)->Read(0, 3, 0, tokens.data()));
}

TEST_F(IndexedDatasetTest, NegativeIdsAreAnErrorWithThePlace) {
  Write(Path("x"), {{1}, {2, 3}}, 100000);
  std::string bin = *ReadFile(Path("x.bin"));
  bin[11] = '\xff';  // the last token's sign
  Put("x.bin", bin);
  auto dataset = IndexedDataset::Open(Path("x"));
  MF_ASSERT_OK(dataset);
  MF_EXPECT_OK(ReadDocument(**dataset, 0));
  EXPECT_TRUE(FailsWith(ReadDocument(**dataset, 1), absl::StatusCode::kOutOfRange,
                        "token 1 of document 1"));
}

TEST_F(IndexedDatasetTest, FilesAppearTogetherAtClose) {
  Write(Path("x"), {{1}}, 10);
  {
    auto writer = IndexedDatasetWriter::Create(Path("x"), 100000);
    MF_ASSERT_OK(writer);
    MF_ASSERT_OK((*writer)->AddDocument({70000}));
  }
  EXPECT_EQ(ReadAll(Path("x")), (Documents{{1}})) << "abandoned: the old pair stays";
  EXPECT_EQ(ListDirectory(directory())->size(), 2u);
}

TEST_F(IndexedDatasetTest, FullDiskIsAnErrorAndLeavesNoPair) {
  auto previous_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit previous;
  getrlimit(RLIMIT_FSIZE, &previous);
  rlimit limit = {1 << 20, previous.rlim_max};
  setrlimit(RLIMIT_FSIZE, &limit);
  auto writer = IndexedDatasetWriter::Create(Path("x"), 10);
  absl::Status status = writer.status();
  if (status.ok()) status = (*writer)->AddDocument(std::vector<int32_t>(1 << 20, 1));
  setrlimit(RLIMIT_FSIZE, &previous);
  std::signal(SIGXFSZ, previous_handler);
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, Path("x.bin")));
  EXPECT_TRUE(ListDirectory(directory())->empty());
}

TEST_F(IndexedDatasetTest, MissingFilesAreNamed) {
  EXPECT_TRUE(
      FailsWith(IndexedDataset::Open(Path("x")), absl::StatusCode::kNotFound, Path("x.idx")));
  Write(Path("x"), {{1}}, 10);
  ASSERT_TRUE(RemoveTree(Path("x.bin")).ok());
  EXPECT_TRUE(
      FailsWith(IndexedDataset::Open(Path("x")), absl::StatusCode::kNotFound, Path("x.bin")));
}

// The golden "small.idx" with one field replaced.
class TokenIndexTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBinBytes = 16;
  // Offsets of the fields in small.idx: 3 sequences, 4 borders.
  static constexpr int64_t kVersion = 9, kType = 17, kSequences = 18, kBorders = 26;
  static constexpr int64_t kLengths = 34, kOffsets = 46, kDocuments = 70;

  TokenIndexTest() : idx_(*ReadFile(absl::StrCat(kGoldens, "small.idx"))) {}

  template <typename T>
  std::string With(int64_t offset, T value) const {
    std::string idx = idx_;
    std::memcpy(idx.data() + offset, &value, sizeof(T));
    return idx;
  }
  static void ExpectRefused(const std::string& idx, absl::string_view reason) {
    absl::StatusOr<TokenIndex> index = TokenIndex::Parse(idx, kBinBytes, "dir/x.idx");
    EXPECT_TRUE(FailsWith(index, absl::StatusCode::kInvalidArgument, "'dir/x.idx'"));
    EXPECT_TRUE(FailsWith(index, absl::StatusCode::kInvalidArgument, reason));
  }

  std::string idx_;
};

TEST_F(TokenIndexTest, ReadsTheGolden) {
  absl::StatusOr<TokenIndex> index = TokenIndex::Parse(idx_, kBinBytes, "x");
  MF_ASSERT_OK(index);
  EXPECT_EQ(index->type(), TokenType::kU16);
  EXPECT_EQ(index->num_sequences(), 3);
  EXPECT_EQ(index->num_documents(), 3);
  EXPECT_EQ(index->sequence_length(2), 3);
  EXPECT_EQ(index->sequence_offset(2), 10);
}

TEST_F(TokenIndexTest, AcceptsModesOfMultimodalFiles) {
  MF_EXPECT_OK(TokenIndex::Parse(idx_ + std::string(3, '\0'), kBinBytes, "x"));
  ExpectRefused(idx_ + std::string(2, '\0'), "take 102");
  ExpectRefused(idx_ + std::string(4, '\0'), "take 102");
}

TEST_F(TokenIndexTest, RefusesEveryTruncation) {
  for (size_t length = 0; length < idx_.size(); ++length) {
    EXPECT_FALSE(TokenIndex::Parse(idx_.substr(0, length), kBinBytes, "x").ok()) << length;
  }
}

TEST_F(TokenIndexTest, RefusesAHostileHeader) {
  ExpectRefused(With<char>(0, 'X'), "not an .idx file");
  ExpectRefused(With<char>(8, 'X'), "not an .idx file");
  ExpectRefused(With<uint64_t>(kVersion, 2), "version 2");
  ExpectRefused(With<uint8_t>(kType, 6), "holds floats, not tokens: type code 6");
  ExpectRefused(With<uint8_t>(kType, 7), "type code 7");
  for (int code : {0, 9, 255}) {
    ExpectRefused(With<uint8_t>(kType, code), absl::StrCat("unknown type code ", code));
  }
  for (uint64_t count : {UINT64_MAX, uint64_t{1} << 63, uint64_t{1} << 60, uint64_t{103}}) {
    ExpectRefused(With<uint64_t>(kSequences, count), "announces");
    ExpectRefused(With<uint64_t>(kBorders, count), "announces");
  }
  ExpectRefused(With<uint64_t>(kBorders, 0), "0 document borders");
  ExpectRefused(With<uint64_t>(kSequences, 4), "take 114");
  ExpectRefused(With<uint64_t>(kBorders, 3), "take 94");
}

TEST_F(TokenIndexTest, RefusesSequencesOutsideTheBin) {
  ExpectRefused(With<int32_t>(kLengths, -1), "sequence 0 of -1 tokens");
  ExpectRefused(With<int32_t>(kLengths, 9), "sequence 0 of 9 tokens of 2 bytes at byte 0");
  ExpectRefused(With<int32_t>(kLengths + 8, INT32_MAX), "sequence 2 of 2147483647 tokens");
  ExpectRefused(With<int64_t>(kOffsets, -2), "at byte -2");
  ExpectRefused(With<int64_t>(kOffsets + 16, 11), "of a .bin file of 16 bytes");
  ExpectRefused(With<int64_t>(kOffsets + 16, INT64_MAX), "sequence 2");
  ExpectRefused(With<uint8_t>(kType, 5), "tokens of 8 bytes");
  EXPECT_FALSE(TokenIndex::Parse(idx_, kBinBytes - 1, "x").ok());
}

TEST_F(TokenIndexTest, RefusesDocumentBordersOutOfOrder) {
  ExpectRefused(With<int64_t>(kDocuments, 1), "starts document 0 at sequence 1");
  ExpectRefused(With<int64_t>(kDocuments + 8, -1), "starts document 1 at sequence -1");
  ExpectRefused(With<int64_t>(kDocuments + 16, 0), "starts document 2 at sequence 0 after 1");
  ExpectRefused(With<int64_t>(kDocuments + 24, 2), "ends its documents at sequence 2 of 3");
  ExpectRefused(With<int64_t>(kDocuments + 24, 4), "ends its documents at sequence 4 of 3");
  ExpectRefused(With<int64_t>(kDocuments + 24, INT64_MAX), "of 3");
}

}  // namespace
}  // namespace meshfold
