#include "core/io/safetensors_header.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

// A file with the given header text and `data_bytes` zero bytes of data.
std::string File(absl::string_view json, size_t data_bytes) {
  uint64_t length = json.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  absl::StrAppend(&file, json, std::string(data_bytes, '\0'));
  return file;
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& file) {
  return ParseSafetensorsHeader(file, file.size(), "dir/x.safetensors");
}

// Both the path and the reason must be in the message.
void ExpectRefused(const std::string& file, absl::string_view reason) {
  absl::StatusOr<SafetensorsHeader> header = Parse(file);
  EXPECT_TRUE(FailsWith(header, absl::StatusCode::kInvalidArgument, "'dir/x.safetensors'"));
  EXPECT_TRUE(FailsWith(header, absl::StatusCode::kInvalidArgument, reason));
}

std::string Entry(absl::string_view name, absl::string_view dtype, absl::string_view shape,
                  absl::string_view offsets) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":", offsets, "}");
}

TEST(SafetensorsHeaderTest, ReadsTensorsAndMetadata) {
  absl::StatusOr<SafetensorsHeader> header = Parse(
      File(absl::StrCat("{\"__metadata__\":{\"format\":\"pt\",\"k\":\"v\"},",
                        Entry("b", "BF16", "[2,3]", "[8,20]"), ",",
                        Entry("a", "F32", "[2]", "[0,8]"), ",", Entry("e", "I64", "[0,7]", "[8,8]"),
                        ",", Entry("s", "U8", "[]", "[20,21]"), "}   "),
           21));
  MF_ASSERT_OK(header);
  EXPECT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors["b"].dtype, FileDType::kBF16);
  EXPECT_EQ(header->tensors["b"].shape, std::vector<int64_t>({2, 3}));
  EXPECT_EQ(header->tensors["b"].begin, 8);
  EXPECT_EQ(header->tensors["b"].end, 20);
  EXPECT_EQ(header->metadata["k"], "v");
}

TEST(SafetensorsHeaderTest, ReadsAFileWithoutTensors) { MF_EXPECT_OK(Parse(File("{}", 0))); }

TEST(SafetensorsHeaderTest, RefusesWrongLengths) {
  ExpectRefused("", "0 bytes long");
  ExpectRefused("1234567", "7 bytes long");
  ExpectRefused(File("{}", 0).substr(0, 9), "header of 2 bytes, but is 9");
  std::string huge = File("{}", 100);
  for (uint64_t length : {uint64_t{100'000'001}, UINT64_MAX, uint64_t{INT64_MAX}}) {
    std::memcpy(huge.data(), &length, 8);
    ExpectRefused(huge, absl::StrCat("header of ", length, " bytes, more than 100000000"));
  }
  uint64_t beyond = 103;
  std::memcpy(huge.data(), &beyond, 8);
  ExpectRefused(huge, "header of 103 bytes, but is 110");
  ExpectRefused(File("", 0), "does not start with '{'");
}

TEST(SafetensorsHeaderTest, RefusesWhatIsNotAHeader) {
  ExpectRefused(File(" {}", 0), "does not start with '{'");
  ExpectRefused(File("[]", 0), "does not start with '{'");
  ExpectRefused(File("{", 0), "not valid JSON");
  ExpectRefused(File("{} x", 0), "not valid JSON");
  ExpectRefused(File("{}{}", 0), "not valid JSON");
  ExpectRefused(File("{\"a\":", 0), "not valid JSON");
  ExpectRefused(File("{\"\xff\":{}}", 0), "not valid JSON");
  ExpectRefused(File("{\"a\":null}", 0), "null in a wrong place");
  ExpectRefused(File("{\"a\":true}", 0), "a boolean in a wrong place");
  ExpectRefused(File("{\"a\":[]}", 0), "an array in a wrong place");
  ExpectRefused(File("{\"a\":3}", 0), "a number in a wrong place");
  ExpectRefused(File("{\"a\":\"x\"}", 0), "a string in a wrong place");
  ExpectRefused(File("{\"a\":{}}", 0), "describes 'a' without");
  ExpectRefused(File("{\"a\":{\"dtype\":{}}}", 0), "an object in a wrong place");
  ExpectRefused(File("{\"a\":{\"dtype\":[\"F32\"]}}", 0), "an array in a wrong place");
  ExpectRefused(File("{\"a\":{\"shape\":[[1]]}}", 0), "an array in a wrong place");
  ExpectRefused(File("{\"a\":{\"shape\":[\"1\"]}}", 0), "a string in a wrong place");
  ExpectRefused(File("{\"a\":{\"color\":1}}", 0), "unknown field 'color'");
  ExpectRefused(File("{\"__metadata__\":{\"a\":1}}", 0), "a number in a wrong place");
  ExpectRefused(File("{\"__metadata__\":{\"a\":{}}}", 0), "an object in a wrong place");
  ExpectRefused(File(absl::StrCat("{\"a\":", std::string(100000, '[')), 0), "an array");
}

TEST(SafetensorsHeaderTest, RefusesRepeatedKeys) {
  std::string a = Entry("a", "U8", "[1]", "[0,1]"), b = Entry("a", "U8", "[1]", "[1,2]");
  ExpectRefused(File(absl::StrCat("{", a, ",", b, "}"), 2), "repeats the tensor 'a'");
  ExpectRefused(File("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0), "repeats dtype of 'a'");
  ExpectRefused(File("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0), "metadata key 'k'");
  ExpectRefused(File("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "repeats '__metadata__'");
}

TEST(SafetensorsHeaderTest, RefusesWrongTypesAndNumbers) {
  auto one = [](absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
    return File(absl::StrCat("{", Entry("a", dtype, shape, offsets), "}"), 8);
  };
  MF_EXPECT_OK(Parse(one("F32", "[2]", "[0,8]")));
  ExpectRefused(one("F99", "[2]", "[0,8]"), "'a' the unknown dtype 'F99'");
  ExpectRefused(one("F4", "[16]", "[0,8]"), "'a' the unknown dtype 'F4'");
  ExpectRefused(one("f32", "[2]", "[0,8]"), "unknown dtype 'f32'");
  ExpectRefused(one("F32", "[-2]", "[0,8]"), "negative number -2");
  ExpectRefused(one("F32", "[2.0]", "[0,8]"), "number 2.0 where an integer belongs");
  ExpectRefused(one("F32", "[2e0]", "[0,8]"), "where an integer belongs");
  ExpectRefused(one("F32", "[9223372036854775808]", "[0,8]"), "9223372036854775808 in shape");
  ExpectRefused(one("F32", "[99999999999999999999]", "[0,8]"), "where an integer belongs");
  ExpectRefused(one("F32", "[2]", "[0]"), "two data_offsets");
  ExpectRefused(one("F32", "[2]", "[0,8,8]"), "two data_offsets");
  std::string dims = "[1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  ExpectRefused(one("U8", dims + "]", "[0,1]"), "more than 64 numbers");
}

TEST(SafetensorsHeaderTest, RefusesSizesThatDisagree) {
  auto one = [](absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
    return File(absl::StrCat("{", Entry("a", dtype, shape, offsets), "}"), 8);
  };
  ExpectRefused(one("F32", "[3]", "[0,8]"), "F32 [3] is 12 bytes");
  ExpectRefused(one("BF16", "[2]", "[0,8]"), "BF16 [2] is 4 bytes");
  ExpectRefused(one("F32", "[0]", "[0,8]"), "F32 [0] is 0 bytes");
  ExpectRefused(one("F32", "[]", "[0,8]"), "F32 [] is 4 bytes");
  // 2^33 * 2^33 * 4 is 16 mod 2^64, and 2^62 * 4 is 0.
  ExpectRefused(one("F32", "[8589934592,8589934592]", "[0,8]"), "too large to address");
  ExpectRefused(one("F32", "[4611686018427387904]", "[0,8]"), "too large to address");
  ExpectRefused(one("F32", "[4611686018427387904,4,0]", "[0,8]"), "too large to address");
}

TEST(SafetensorsHeaderTest, RefusesOffsetsThatDoNotCoverTheData) {
  auto two = [](absl::string_view a, absl::string_view b, size_t data_bytes) {
    return File(absl::StrCat("{", Entry("a", "U8", "[4]", a), ",", Entry("b", "U8", "[4]", b), "}"),
                data_bytes);
  };
  MF_EXPECT_OK(Parse(two("[4,8]", "[0,4]", 8)));
  ExpectRefused(two("[0,4]", "[2,6]", 6), "overlap");
  ExpectRefused(two("[0,4]", "[0,4]", 4), "overlap");
  ExpectRefused(two("[0,4]", "[5,9]", 9), "hole before 'b'");
  ExpectRefused(two("[1,5]", "[5,9]", 9), "hole before 'a'");
  ExpectRefused(two("[0,4]", "[4,8]", 9), "describes 8 bytes of data, the file has 9");
  ExpectRefused(two("[0,4]", "[4,8]", 7), "'b' at bytes [4, 8) of 7");
  ExpectRefused(two("[0,4]", "[8,4]", 8), "'b' at bytes [8, 4) of 8");
  ExpectRefused(two("[0,4]", "[9223372036854775803,9223372036854775807]", 8), "of 8");
  ExpectRefused(File("{}", 3), "describes 0 bytes of data, the file has 3");
}

TEST(SafetensorsHeaderTest, RefusesEveryTruncation) {
  std::string file = File(absl::StrCat("{\"__metadata__\":{\"format\":\"pt\"},",
                                       Entry("a", "F32", "[2]", "[0,8]"), "}"),
                          8);
  MF_ASSERT_OK(Parse(file));
  for (size_t length = 0; length < file.size(); ++length) {
    EXPECT_FALSE(Parse(file.substr(0, length)).ok()) << length;
  }
}

TEST(SafetensorsHeaderTest, LongNamesDoNotFillMessages) {
  std::string name(1'000'000, 'n');
  absl::StatusOr<SafetensorsHeader> header =
      Parse(File(absl::StrCat("{", Entry(name, "F99", "[]", "[0,4]"), "}"), 4));
  ASSERT_FALSE(header.ok());
  EXPECT_LT(header.status().message().size(), 400u);
}

TEST(FormatSafetensorsHeaderTest, IsAlignedAndReadsBack) {
  for (int extra = 0; extra < 9; ++extra) {
    std::vector<TensorSpec> specs = {{std::string(extra, 'x') + "\n\"", FileDType::kF16, {3}},
                                     {"b", FileDType::kI64, {}}};
    absl::StatusOr<std::string> text = FormatSafetensorsHeader(specs, {{"k", "v\t"}});
    MF_ASSERT_OK(text);
    EXPECT_EQ(text->size() % 8, 0u);
    absl::StatusOr<SafetensorsHeader> header = Parse(*text + std::string(14, '\0'));
    MF_ASSERT_OK(header);
    EXPECT_EQ(header->tensors.at(specs[0].name).end, 6);
    EXPECT_EQ(header->metadata.at("k"), "v\t");
  }
}

TEST(FormatSafetensorsHeaderTest, RefusesBadNamesAndSizes) {
  auto refused = [](std::vector<TensorSpec> specs, absl::string_view reason) {
    EXPECT_TRUE(
        FailsWith(FormatSafetensorsHeader(specs, {}), absl::StatusCode::kInvalidArgument, reason));
  };
  refused({{"a", FileDType::kU8, {}}, {"a", FileDType::kU8, {}}}, "'a' is given twice");
  refused({{"__metadata__", FileDType::kU8, {}}}, "reserved");
  refused({{"\xff", FileDType::kU8, {}}}, "not UTF-8");
  refused({{"a", FileDType::kU8, {-1}}}, "negative extent");
  refused({{"a", FileDType::kU8, {int64_t{1} << 62, 2}}}, "too large");
  refused({{"a", FileDType::kU8, {INT64_MAX}}, {"b", FileDType::kU8, {1}}}, "too large");
}

}  // namespace
}  // namespace meshfold
