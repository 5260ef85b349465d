#include "core/io/safetensors_dir.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/exec_context.h"
#include "core/tensor/allocator.h"
#include "tests/core/io/scratch.h"

namespace meshfold {
namespace {

class SafetensorsDirTest : public ScratchTest {
 protected:
  SafetensorsDirTest() : scope_(context_) {}

  // A file with one-element f32 tensors whose value is the tensor's index.
  void PutFile(absl::string_view name, const std::vector<std::string>& tensors) {
    std::vector<NamedTensor> list;
    for (const std::string& tensor : tensors) {
      list.push_back({tensor, TensorFromVector<float>({static_cast<float>(list.size())}, {1})});
    }
    MF_ASSERT_OK(WriteSafetensors(Path(name), list));
  }
  void PutIndex(absl::string_view weight_map) {
    Put("model.safetensors.index.json",
        absl::StrCat("{\"metadata\": {}, \"weight_map\": ", weight_map, "}"));
  }
  void ExpectRefused(absl::StatusCode code, absl::string_view part) {
    EXPECT_TRUE(FailsWith(SafetensorsDir::Open(directory()), code, part));
  }

 private:
  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
};

TEST_F(SafetensorsDirTest, ReadsOneFileOrShardsAsOneSet) {
  PutFile("a.safetensors", {"x", "y"});
  PutFile("b.safetensors", {"u", "z"});
  PutIndex(R"({"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"})");
  auto dir = SafetensorsDir::Open(directory());
  MF_ASSERT_OK(dir);
  EXPECT_EQ(dir->names(), std::vector<std::string>({"u", "x", "y", "z"})) << "the union";
  EXPECT_EQ(ToVector<float>(*dir->Read("z")), std::vector<float>({1}));
  EXPECT_EQ((*dir->FileOf("z"))->path(), Path("b.safetensors"));
  EXPECT_TRUE(FailsWith(dir->Read("w"), absl::StatusCode::kNotFound, directory()));
  PutFile("model.safetensors", {"single"});
  dir = SafetensorsDir::Open(directory());
  MF_ASSERT_OK(dir);
  EXPECT_EQ(dir->names(), std::vector<std::string>({"single"}));
}

TEST_F(SafetensorsDirTest, RefusesAnIncompleteSet) {
  ExpectRefused(absl::StatusCode::kNotFound, "neither model.safetensors nor");
  PutFile("a.safetensors", {"x"});
  PutIndex(R"({"x": "a.safetensors", "y": "b.safetensors"})");
  ExpectRefused(absl::StatusCode::kNotFound, Path("b.safetensors"));
  PutFile("b.safetensors", {"other"});
  ExpectRefused(absl::StatusCode::kInvalidArgument,
                "puts 'y' into 'b.safetensors', which does not hold it");
  PutFile("b.safetensors", {"x", "y"});
  ExpectRefused(absl::StatusCode::kInvalidArgument, "the tensor 'x' is both in");
}

TEST_F(SafetensorsDirTest, RefusesATensorThatIsInAnotherShardThanTheIndexSays) {
  PutFile("a.safetensors", {"x"});
  PutFile("b.safetensors", {"y"});
  PutIndex(R"({"x": "b.safetensors", "y": "a.safetensors"})");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "which does not hold it");
}

TEST_F(SafetensorsDirTest, RefusesShardsOutsideTheDirectory) {
  PutFile("a.safetensors", {"x"});
  for (const char* name : {"../a.safetensors", "/etc/passwd", "..", "", "sub/a.safetensors",
                           "./a.safetensors", "a.safetensors\\u0000b"}) {
    PutIndex(absl::StrCat("{\"x\": \"", name, "\"}"));
    ExpectRefused(absl::StatusCode::kInvalidArgument, "not a file of the same directory");
  }
}

TEST_F(SafetensorsDirTest, RefusesADamagedIndex) {
  PutFile("a.safetensors", {"x"});
  Put("model.safetensors.index.json", "{\"weight_map\": ");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "index.json' is not valid JSON");
  Put("model.safetensors.index.json", "[]");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "no object 'weight_map'");
  PutIndex("[1]");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "no object 'weight_map'");
  PutIndex("{\"x\": 3}");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "gives 'x' no file name");
  PutIndex(R"({"x": "a.safetensors", "x": "b.safetensors"})");
  ExpectRefused(absl::StatusCode::kInvalidArgument, "repeats the key 'x'");
}

std::vector<std::vector<std::string>> Names(const std::vector<std::vector<TensorSpec>>& shards) {
  std::vector<std::vector<std::string>> names;
  for (const auto& shard : shards) {
    names.emplace_back();
    for (const TensorSpec& spec : shard) names.back().push_back(spec.name);
  }
  return names;
}

TEST(PlanShardsTest, CutsAsTheReferenceLibraryDoes) {
  auto plan = [](std::vector<int64_t> sizes, int64_t limit) {
    std::vector<TensorSpec> specs;
    for (int64_t size : sizes)
      specs.push_back({std::to_string(specs.size()), FileDType::kU8, {size}});
    return Names(*PlanShards(specs, limit));
  };
  using Shards = std::vector<std::vector<std::string>>;
  // The example of the library's own documentation: 6, 6, 2, 6, 2, 2 with a limit of 10.
  EXPECT_EQ(plan({6, 6, 2, 6, 2, 2}, 10), (Shards{{"0"}, {"1", "2"}, {"3", "4", "5"}}));
  EXPECT_EQ(plan({6, 4, 1}, 10), (Shards{{"0", "1"}, {"2"}}));
  // A tensor over the limit stands alone and does not end the shard before it.
  EXPECT_EQ(plan({3, 11, 3}, 10), (Shards{{"1"}, {"0", "2"}}));
  EXPECT_EQ(plan({11, 12}, 10), (Shards{{"0"}, {"1"}}));
  EXPECT_EQ(plan({}, 10), (Shards{{}}));
}

TEST_F(SafetensorsDirTest, WritesShardsAndIndex) {
  std::vector<TensorSpec> specs = {{"c", FileDType::kF32, {2}},
                                   {"a", FileDType::kF32, {2}},
                                   {"big", FileDType::kF32, {8}},
                                   {"b", FileDType::kBF16, {2}}};
  std::string out = Path("out");
  auto writer = ShardedSafetensorsWriter::Create(out, specs, {.max_shard_bytes = 16});
  MF_ASSERT_OK(writer);
  std::vector<std::string> order;
  for (const TensorSpec& spec : (*writer)->order()) {
    order.push_back(spec.name);
    std::vector<float> values(spec.shape[0], static_cast<float>(order.size()));
    MF_ASSERT_OK((*writer)->Append(spec.name, TensorFromVector<float>(values, {spec.shape[0]})));
  }
  EXPECT_EQ(order, std::vector<std::string>({"big", "a", "c", "b"}));
  EXPECT_FALSE(FileExists(JoinPath(out, "model.safetensors.index.json")));
  MF_ASSERT_OK((*writer)->Close());
  EXPECT_EQ(*ListDirectory(out),
            std::vector<std::string>(
                {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                 "model-00003-of-00003.safetensors", "model.safetensors.index.json"}));
  EXPECT_EQ(*ReadFile(JoinPath(out, "model.safetensors.index.json")),
            "{\n"
            "  \"metadata\": {\n"
            "    \"total_size\": 52\n"
            "  },\n"
            "  \"weight_map\": {\n"
            "    \"a\": \"model-00002-of-00003.safetensors\",\n"
            "    \"b\": \"model-00003-of-00003.safetensors\",\n"
            "    \"big\": \"model-00001-of-00003.safetensors\",\n"
            "    \"c\": \"model-00002-of-00003.safetensors\"\n"
            "  }\n"
            "}\n");
  auto dir = SafetensorsDir::Open(out);
  MF_ASSERT_OK(dir);
  EXPECT_EQ(ToVector<float>(*dir->Read("b")), std::vector<float>({4, 4}));
  EXPECT_EQ(dir->info("b")->dtype, FileDType::kBF16);
}

TEST_F(SafetensorsDirTest, ReplacesAnEarlierExport) {
  auto write = [&](int64_t limit, const std::vector<std::string>& names) {
    std::vector<TensorSpec> specs;
    for (const std::string& name : names) specs.push_back({name, FileDType::kF32, {1}});
    auto writer = ShardedSafetensorsWriter::Create(directory(), specs, {.max_shard_bytes = limit});
    MF_ASSERT_OK(writer);
    for (const TensorSpec& spec : (*writer)->order()) {
      MF_ASSERT_OK((*writer)->Append(spec.name, TensorFromVector<float>({1}, {1})));
    }
    MF_ASSERT_OK((*writer)->Close());
    auto dir = SafetensorsDir::Open(directory());
    MF_ASSERT_OK(dir);
    EXPECT_EQ(dir->names(), names);
  };
  Put("config.json", "{}");
  Put("model-ab-of-cd.safetensors", "not ours");
  write(100, {"one"});
  write(4, {"x", "y", "z"});
  write(4, {"x", "y"});
  write(100, {"last"});
  EXPECT_EQ(
      *ListDirectory(directory()),
      std::vector<std::string>({"config.json", "model-ab-of-cd.safetensors", "model.safetensors"}));
}

TEST_F(SafetensorsDirTest, WriterRefusesRepeatedAndMissingTensors) {
  std::vector<TensorSpec> twice = {{"a", FileDType::kF32, {1}}, {"a", FileDType::kF32, {1}}};
  EXPECT_TRUE(
      FailsWith(ShardedSafetensorsWriter::Create(directory(), twice, {.max_shard_bytes = 4}),
                absl::StatusCode::kInvalidArgument, "'a' is given twice"));
  std::vector<TensorSpec> specs = {{"a", FileDType::kF32, {1}}, {"b", FileDType::kF32, {1}}};
  auto writer = ShardedSafetensorsWriter::Create(directory(), specs, {.max_shard_bytes = 4});
  MF_ASSERT_OK(writer);
  Tensor one = TensorFromVector<float>({1}, {1});
  EXPECT_TRUE(FailsWith((*writer)->Append("b", one), absl::StatusCode::kFailedPrecondition, "'a'"));
  EXPECT_TRUE(
      FailsWith((*writer)->Append("c", one), absl::StatusCode::kInvalidArgument, "'c' was not"));
  EXPECT_TRUE(FailsWith((*writer)->Close(), absl::StatusCode::kFailedPrecondition, "'a'"));
  EXPECT_FALSE(FileExists(Path("model.safetensors.index.json")));
}

}  // namespace
}  // namespace meshfold
