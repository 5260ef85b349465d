#include "parallel/checkpoint_index.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/io/scratch.h"

namespace meshfold::parallel {
namespace {

using Json = nlohmann::json;

// A tensor of two column shards and a scalar.
CheckpointIndex Example() {
  CheckpointIndex index;
  index.state.step = 12;
  index.state.integers = {{"loader.sample", INT64_MAX}, {"negative", INT64_MIN}};
  index.config_checksum = ChecksumOf("run: {}");
  CheckpointTensorInfo& matrix = index.tensors["model/w"];
  matrix.dtype = DType::kBF16;
  matrix.shape = Shape{2, 3};
  matrix.pieces = {{"shard-0", "a", {0, 0}, {2, 2}, 0, 4, ChecksumOf("a")},
                   {"shard-1", "a", {0, 2}, {2, 1}, 0, 2, ChecksumOf("b")}};
  index.tensors["scalar"].pieces = {{"shard-0", "b", {}, {}, 0, 1, ChecksumOf("c")}};
  return index;
}

// The example as JSON without its own checksum, to be damaged.
Json ExampleJson() {
  Json json = Json::parse(FormatIndex(Example()).value());
  json.erase("xxh3");
  return json;
}

absl::Status Parse(const Json& json) { return ParseIndex(json.dump(), "x/index.json").status(); }

TEST(CheckpointIndexTest, ReadsWhatItWrote) {
  absl::StatusOr<CheckpointIndex> index = ParseIndex(FormatIndex(Example()).value(), "source");
  MF_ASSERT_OK(index);
  EXPECT_EQ(index->state.step, 12);
  EXPECT_EQ(index->state.integers, Example().state.integers);
  EXPECT_EQ(index->config_checksum, ChecksumOf("run: {}"));
  ASSERT_EQ(index->tensors.size(), 2u);
  const CheckpointTensorInfo& matrix = index->tensors.at("model/w");
  EXPECT_EQ(matrix.dtype, DType::kBF16);
  EXPECT_EQ(matrix.shape, (Shape{2, 3}));
  ASSERT_EQ(matrix.pieces.size(), 2u);
  const CheckpointPiece& piece = matrix.pieces[1];
  EXPECT_EQ(piece.file, "shard-1");
  EXPECT_EQ(piece.key, "a");
  EXPECT_EQ(piece.start, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(piece.extent, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(piece.flat_begin, 0);
  EXPECT_EQ(piece.flat_end, 2);
  EXPECT_EQ(piece.checksum, ChecksumOf("b"));
  EXPECT_EQ(index->tensors.at("scalar").shape, Shape());
}

TEST(CheckpointIndexTest, ChecksumIsXxh3) {
  EXPECT_EQ(ChecksumOf(""), "2d06800538d394c2");  // XXH3-64 of nothing, from its test vectors
  EXPECT_EQ(ChecksumText(1), "0000000000000001");
}

TEST(CheckpointIndexTest, RefusesNamesThatAreNotUtf8) {
  CheckpointIndex index = Example();
  index.state.integers["\xff"] = 1;
  EXPECT_TRUE(FailsWith(FormatIndex(index), absl::StatusCode::kInvalidArgument, "UTF-8"));
}

TEST(CheckpointIndexTest, NoticesAnyChangedByte) {
  const std::string text = FormatIndex(Example()).value();
  for (size_t i = 0; i < text.size(); ++i) {
    for (char flip : {1, 16}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      absl::StatusOr<CheckpointIndex> index = ParseIndex(damaged, "source");
      // What is still read (a blank became another blank, the checksum's name changed) says the
      // same.
      if (!index.ok()) continue;
      EXPECT_EQ(FormatIndex(*index).value(), text) << "byte " << i;
    }
  }
  EXPECT_TRUE(FailsWith(ParseIndex(absl::string_view(text).substr(0, text.size() / 2), "source"),
                        absl::StatusCode::kInvalidArgument, "JSON"));
}

TEST(CheckpointIndexTest, NamesBothChecksumsOfADamagedIndex) {
  Json json = Json::parse(FormatIndex(Example()).value());
  json["step"] = 13;
  EXPECT_TRUE(FailsWith(Parse(json), absl::StatusCode::kInvalidArgument,
                        json["xxh3"].get<std::string>() + "); the file is damaged"));
}

TEST(CheckpointIndexTest, RefusesAnotherFormatOrVersion) {
  Json json = ExampleJson();
  json["version"] = 2;
  EXPECT_TRUE(FailsWith(Parse(json), absl::StatusCode::kFailedPrecondition,
                        "'x/index.json' is version 2 of the format; this program reads version 1"));
  json["format"] = "other";
  EXPECT_TRUE(FailsWith(Parse(json), absl::StatusCode::kInvalidArgument, "not the index"));
  EXPECT_TRUE(FailsWith(ParseIndex("[]", "s"), absl::StatusCode::kInvalidArgument, "no"));
  EXPECT_TRUE(FailsWith(ParseIndex("{}", "s"), absl::StatusCode::kInvalidArgument, "'format'"));
}

struct Damage {
  const char* pointer;  // where in the example
  Json value;           // what comes there; null: the member is taken out
  const char* message;
};

TEST(CheckpointIndexTest, RefusesHostileValues) {
  const Json kTooLarge = uint64_t{1} << 63;
  const std::vector<Damage> damages = {
      {"/step", -1, "the step -1"},
      {"/step", 1.5, "'step' that is no 64-bit integer"},
      {"/step", true, "'step' that is no 64-bit integer"},
      {"/step", kTooLarge, "'step' that is no 64-bit integer"},
      {"/step", nullptr, "no member 'step'"},
      {"/integers", 3, "no object"},
      {"/integers/negative", "1", "'negative' that is no 64-bit integer"},
      {"/config_xxh3", "0", "16 hex digits"},
      {"/tensors", Json::array(), "no object"},
      {"/tensors/scalar", 1, "tensor 'scalar' is not an object"},
      {"/tensors/model~1w/dtype", "f13", "f13"},
      {"/tensors/model~1w/dtype", 1, "'dtype' that is no text"},
      {"/tensors/model~1w/shape", "2", "'shape' that is no list"},
      {"/tensors/model~1w/shape/0", 1e30, "'shape' that is no 64-bit integer"},
      {"/tensors/model~1w/shape/0", -2, "tensor 'model/w' has the shape [-2, 3]"},
      {"/tensors/model~1w/shape/0", INT64_MAX, "not possible"},
      {"/tensors/model~1w/pieces", Json::object(), "no list"},
      {"/tensors/model~1w/pieces/1", nullptr, "2 elements in no piece"},
      {"/tensors/model~1w/pieces/1/start/1", 1, "in two pieces"},
      {"/tensors/model~1w/pieces/1/file", "../shard", "leaves the checkpoint"},
      {"/tensors/model~1w/pieces/1/file", "..", "piece 1 has a 'file' that leaves"},
      {"/tensors/model~1w/pieces/1/file", "", "leaves the checkpoint"},
      {"/tensors/model~1w/pieces/1/file", std::string("a\0b", 3), "leaves the checkpoint"},
      {"/tensors/model~1w/pieces/1/file", "shard-0", "'a' of 'shard-0' a second time"},
      {"/tensors/model~1w/pieces/1/key", nullptr, "piece 1 has no member 'key'"},
      {"/tensors/model~1w/pieces/1/flat", {0}, "'flat' of 1 numbers"},
      {"/tensors/model~1w/pieces/1/flat/0", -1, "outside its shape"},
      {"/tensors/model~1w/pieces/1/flat/1", kTooLarge, "no 64-bit integer"},
      {"/tensors/model~1w/pieces/1/xxh3", "0123456789abcdeF", "16 hex digits"},
      {"/tensors/model~1w/pieces/1/xxh3", 1, "'xxh3' that is no text"},
  };
  MF_EXPECT_OK(Parse(ExampleJson()));
  for (const Damage& damage : damages) {
    Json json = ExampleJson();
    Json::json_pointer at(damage.pointer);
    if (damage.value.is_null() && json[at.parent_pointer()].is_array()) {
      json[at.parent_pointer()].erase(std::stoul(at.back()));
    } else if (damage.value.is_null()) {
      json[at.parent_pointer()].erase(at.back());
    } else {
      json[at] = damage.value;
    }
    EXPECT_TRUE(FailsWith(Parse(json), absl::StatusCode::kInvalidArgument, damage.message))
        << damage.pointer << " = " << damage.value;
    EXPECT_TRUE(FailsWith(Parse(json), absl::StatusCode::kInvalidArgument, "'x/index.json'"));
  }
}

TEST(CheckpointIndexTest, RefusesARepeatedTensor) {
  std::string text = R"({"format": "meshfold-checkpoint", "version": 1, "step": 0, "integers": {},
      "tensors": {"a": {"dtype": "f32", "shape": [0], "pieces": []},
                  "a": {"dtype": "f32", "shape": [0], "pieces": []}}})";
  EXPECT_TRUE(FailsWith(ParseIndex(text, "source"), absl::StatusCode::kInvalidArgument, "'a'"));
}

TEST(CheckpointIndexTest, IgnoresUnknownMembers) {
  Json json = ExampleJson();
  json["writer"] = {{"version", 3.5}};
  json["tensors"]["scalar"]["note"] = "x";
  MF_EXPECT_OK(Parse(json));
}

}  // namespace
}  // namespace meshfold::parallel
