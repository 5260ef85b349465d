#include "core/data/token_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/exec_context.h"
#include "core/io/safetensors.h"
#include "core/tensor/allocator.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

constexpr char kGoldens[] = "tests/core/data/testdata/";

using Documents = std::vector<std::vector<int32_t>>;

class TokenFileTest : public ScratchTest {
 protected:
  TokenFileTest() : scope_(context_) {}

  static Documents ReadAll(const std::string& path) {
    auto dataset = TokenFile::Open(path);
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    if (!dataset.ok()) return {};
    Documents documents;
    for (int64_t i = 0; i < (*dataset)->num_documents(); ++i) {
      documents.push_back(*ReadDocument(**dataset, i));
    }
    return documents;
  }
  std::string PutTensors(const std::vector<NamedTensor>& tensors) {
    std::string path = Path("x.safetensors");
    EXPECT_TRUE(WriteSafetensors(path, tensors).ok());
    return path;
  }
  static Tensor I64(const std::vector<int64_t>& values, const Shape& shape) {
    return TensorFromVector<int64_t>(values, shape);
  }

 private:
  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
};

TEST_F(TokenFileTest, ReadsFilesOfNumPy) {
  EXPECT_EQ(ReadAll(absl::StrCat(kGoldens, "u16.npy")), (Documents{{1, 2, 65535}, {4, 5, 6}}));
  EXPECT_EQ(ReadAll(absl::StrCat(kGoldens, "i64.npy")), (Documents{{7, 70000, 0}}));
}

TEST_F(TokenFileTest, ReadsSafetensorsOfEitherName) {
  EXPECT_EQ(ReadAll(PutTensors({{"input_ids", I64({1, 2, 3, 4}, {2, 2})}})),
            (Documents{{1, 2}, {3, 4}}));
  EXPECT_EQ(ReadAll(PutTensors({{"tokens", TensorFromVector<int32_t>({5, 6}, {2})}})),
            (Documents{{5, 6}}));
  EXPECT_EQ(ReadAll(PutTensors({{"tokens", TensorFromVector<uint8_t>({255, 6}, {2})},
                                {"other", TensorFromVector<float>({1}, {1})}})),
            (Documents{{255, 6}}));
  EXPECT_TRUE(FailsWith(TokenFile::Open(PutTensors({{"ids", I64({1}, {1})}})),
                        absl::StatusCode::kInvalidArgument, "neither a tensor 'input_ids'"));
}

TEST_F(TokenFileTest, CuSeqlensCutsDocuments) {
  Tensor tokens = I64({1, 2, 3, 4, 5}, {5});
  auto open = [&](const std::vector<int64_t>& borders) {
    return TokenFile::Open(
        PutTensors({{"tokens", tokens},
                    {"cu_seqlens", I64(borders, {static_cast<int64_t>(borders.size())})}}));
  };
  MF_ASSERT_OK(open({0, 2, 2, 5}));
  EXPECT_EQ(ReadAll(Path("x.safetensors")), (Documents{{1, 2}, {}, {3, 4, 5}}));
  EXPECT_TRUE(FailsWith(open({0, 3, 2, 5}), absl::StatusCode::kInvalidArgument,
                        "the border 2 at position 2"));
  EXPECT_TRUE(FailsWith(open({1, 5}), absl::StatusCode::kInvalidArgument, "the border 1"));
  EXPECT_TRUE(FailsWith(open({0, 4}), absl::StatusCode::kInvalidArgument, "end at 4 of 5 tokens"));
  EXPECT_TRUE(FailsWith(open({0}), absl::StatusCode::kInvalidArgument, "must be I64 [N+1]"));
}

TEST_F(TokenFileTest, IdsThatDoNotFitAreAnErrorWithThePlace) {
  auto dataset =
      TokenFile::Open(PutTensors({{"tokens", I64({1, 2, 3, int64_t{1} << 31}, {2, 2})}}));
  MF_ASSERT_OK(dataset);
  MF_EXPECT_OK(ReadDocument(**dataset, 0));
  EXPECT_TRUE(FailsWith(ReadDocument(**dataset, 1), absl::StatusCode::kOutOfRange,
                        "token 1 of document 1"));
}

TEST_F(TokenFileTest, RefusesFloatsAndOtherRanks) {
  EXPECT_TRUE(
      FailsWith(TokenFile::Open(PutTensors({{"tokens", TensorFromVector<float>({1}, {1})}})),
                absl::StatusCode::kInvalidArgument, "F32"));
  EXPECT_TRUE(FailsWith(TokenFile::Open(PutTensors({{"tokens", I64({1}, {1, 1, 1})}})),
                        absl::StatusCode::kInvalidArgument, "[1, 1, 1]"));
  EXPECT_TRUE(FailsWith(TokenFile::Open(PutTensors({{"tokens", I64({1}, {})}})),
                        absl::StatusCode::kInvalidArgument, "not [T] or [N, L]"));
}

// A .npy file of version 1.
std::string Npy(absl::string_view dict, size_t data_bytes) {
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(dict.size());
  file += static_cast<char>(dict.size() >> 8);
  return absl::StrCat(file, dict, std::string(data_bytes, '\1'));
}

TEST(NpyHeaderTest, ReadsShapes) {
  auto shape = [](absl::string_view text, size_t bytes) {
    auto header = ParseNpyHeader(
        Npy(absl::StrCat("{'descr': '|u1', 'fortran_order': False, 'shape': ", text, ", }\n"),
            bytes),
        "x.npy");
    EXPECT_TRUE(header.ok()) << header.status();
    return header.ok() ? header->shape : std::vector<int64_t>();
  };
  EXPECT_EQ(shape("(3,)", 3), std::vector<int64_t>({3}));
  EXPECT_EQ(shape("(2, 3)", 6), std::vector<int64_t>({2, 3}));
  EXPECT_EQ(shape("()", 1), std::vector<int64_t>());
}

TEST(NpyHeaderTest, RefusesWhatItDoesNotKnow) {
  auto refused = [](const std::string& file, absl::string_view reason) {
    auto header = ParseNpyHeader(file, "dir/x.npy");
    EXPECT_TRUE(FailsWith(header, absl::StatusCode::kInvalidArgument, "'dir/x.npy'"));
    EXPECT_TRUE(FailsWith(header, absl::StatusCode::kInvalidArgument, reason));
  };
  auto dict = [](absl::string_view descr, absl::string_view order, absl::string_view shape) {
    return absl::StrCat("{'descr': ", descr, ", 'fortran_order': ", order, ", 'shape': ", shape,
                        ", }");
  };
  refused("", "not a .npy file");
  refused("PK\x03\x04 not numpy", "not a .npy file");
  refused(Npy(dict("'<f4'", "False", "(1,)"), 4), "'<f4'");
  refused(Npy(dict("'>i4'", "False", "(1,)"), 4), "'>i4'");
  refused(Npy(dict("[('a', '<i4')]", "False", "(1,)"), 4), "not an array of plain numbers");
  refused(Npy(dict("'<i4'", "True", "(2, 2)"), 16), "Fortran order");
  refused(Npy(dict("'<i4'", "False", "(2, 2)"), 15), "15 bytes of data");
  refused(Npy(dict("'<i4'", "False", "(2, 2)"), 17), "17 bytes of data");
  refused(Npy(dict("'<i4'", "False", "(-1,)"), 4), "the shape '-1,");
  refused(Npy(dict("'<i4'", "False", "(x,)"), 4), "the shape 'x,");
  refused(Npy(dict("'<i4'", "False", "(4611686018427387904, 4)"), 0), "0 bytes of data");
  refused(Npy(dict("'<i4'", "False", "(99999999999999999999,)"), 4), "the shape '");
  refused(Npy("{'descr': '<i4', 'shape': (1,), }", 4), "without one 'fortran_order'");
  refused(Npy("{'descr': '<i4', 'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", 4),
          "without one 'descr'");
  std::string version9 = Npy(dict("'<i4'", "False", "(1,)"), 4);
  version9[6] = 9;
  refused(version9, "version 9");
  refused(Npy(dict("'<i4'", "False", "(1,)"), 4).substr(0, 20), "announces a header of");
}

}  // namespace
}  // namespace meshfold
