#include "parallel/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/exec_context.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

using testing::ExpectBitEqual;
using testing::Padding;
using testing::RandomTensor;
using testing::UnwrittenTensor;

class CheckpointTest : public ScratchTest {
 protected:
  CheckpointTest() : scope_(context_) {}

  CheckpointState State(int64_t step) const {
    return {step, {{"loader.sample", 17 * step}}, absl::StrCat("run:\n  step: ", step, "\n")};
  }
  // Saves one matrix that depends on the step.
  absl::StatusOr<std::string> Save(int64_t step, int64_t keep = 0) const {
    std::vector<NamedTensor> tensors = {{"w", RandomTensor(absl::StrCat("w", step), {5, 256})}};
    return SaveCheckpoint(Path("root"), State(step), tensors, {.keep = keep});
  }
  // The checkpoint of `step` at `path` is there and says what was saved.
  void ExpectWhole(const std::string& path, int64_t step) const {
    absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
    MF_ASSERT_OK(checkpoint);
    EXPECT_EQ(checkpoint->state().step, step);
    EXPECT_EQ(checkpoint->state().integers, State(step).integers);
    EXPECT_EQ(checkpoint->state().config_yaml, State(step).config_yaml);
    Tensor w = UnwrittenTensor({5, 256});
    MF_ASSERT_OK(checkpoint->Read("w", w));
    ExpectBitEqual(w, RandomTensor(absl::StrCat("w", step), {5, 256}));
  }
  std::vector<std::string> Names(const std::string& directory) const {
    return ListDirectory(directory).value();
  }
  // Changes one byte of a file in place.
  void Flip(const std::string& path, int64_t at) const {
    std::string bytes = ReadFile(path).value();
    size_t index = static_cast<size_t>(at < 0 ? static_cast<int64_t>(bytes.size()) + at : at);
    bytes[index] = static_cast<char>(bytes[index] ^ 4);
    MF_ASSERT_OK(WriteFile(path, bytes));
  }

  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
};

TEST_F(CheckpointTest, RestoresEveryTypeShapeAndPitchToTheBit) {
  std::vector<NamedTensor> tensors = {
      {"f32", RandomTensor("a", {5, 256}, {.padding = Padding::kGuarded})},
      {"padded", TensorFromVector(std::vector<float>(4 * 256, 0.5f), {4, 256})},
      {"bf16", RandomTensor("b", {2, 3, 7}, {.dtype = DType::kBF16, .padding = Padding::kGuarded})},
      {"f16", RandomTensor("c", {9}, {.dtype = DType::kF16})},
      {"f64", RandomTensor("d", {2, 2}, {.dtype = DType::kF64})},
      {"i32", testing::RandomIds("e", {3, 5}, -100, 100, Padding::kGuarded)},
      {"i64", RandomTensor("f", {4}, {.stddev = 1e6, .dtype = DType::kI64})},
      {"u8", RandomTensor("g", {3, 3}, {.mean = 100, .dtype = DType::kU8})},
      {"scalar", RandomTensor("h", {})},
      {"empty", RandomTensor("i", {0, 4})},
      {"empty columns", RandomTensor("j", {3, 0}, {.dtype = DType::kBF16})},
      {"one", RandomTensor("k", {1})},
  };
  EXPECT_FALSE(tensors[1].tensor.IsContiguous());
  absl::StatusOr<std::string> path = SaveCheckpoint(Path("root"), State(3), tensors, {});
  MF_ASSERT_OK(path);
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(*path);
  MF_ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->directory(), *path);
  EXPECT_EQ(checkpoint->tensors().size(), tensors.size());
  for (const NamedTensor& saved : tensors) {
    for (Padding padding : {Padding::kNone, Padding::kGuarded}) {
      Tensor read = UnwrittenTensor(saved.tensor.shape(), saved.tensor.dtype(), padding);
      MF_EXPECT_OK(checkpoint->Read(saved.name, read));
      ExpectBitEqual(read, saved.tensor, saved.name);
      EXPECT_TRUE(testing::GuardIsIntact(read)) << saved.name;
    }
    EXPECT_EQ(checkpoint->tensors().at(saved.name).dtype, saved.tensor.dtype());
    EXPECT_EQ(checkpoint->tensors().at(saved.name).shape, saved.tensor.shape());
  }
}

TEST_F(CheckpointTest, ConvertsBetweenFloatTypes) {
  Tensor w = RandomTensor("w", {3, 4}, {.dtype = DType::kBF16});
  MF_ASSERT_OK(SaveCheckpoint(Path("root"), State(1), {{"w", w}}, {}));
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(Path("root/step_00000001"));
  MF_ASSERT_OK(checkpoint);
  Tensor wide = UnwrittenTensor({3, 4}, DType::kF32);
  MF_ASSERT_OK(checkpoint->Read("w", wide));
  testing::ExpectClose(wide, w, 0);
  EXPECT_TRUE(FailsWith(checkpoint->Read("w", UnwrittenTensor({3, 4}, DType::kI32)),
                        absl::StatusCode::kInvalidArgument, "tensor 'w' of '"));
}

TEST_F(CheckpointTest, WritesTheseFilesAndNoOthers) {
  absl::StatusOr<std::string> path = Save(42);
  MF_ASSERT_OK(path);
  EXPECT_EQ(*path, Path("root/step_00000042"));
  EXPECT_EQ(Names(Path("root")), (std::vector<std::string>{"latest", "step_00000042"}));
  EXPECT_EQ(Names(*path),
            (std::vector<std::string>{"config.yaml", "index.json", "shard-00000.safetensors"}));
  EXPECT_EQ(ReadFile(Path("root/latest")).value(), "step_00000042\n");
  EXPECT_EQ(ReadFile(JoinPath(*path, "config.yaml")).value(), State(42).config_yaml);
  ExpectWhole(*path, 42);
}

TEST_F(CheckpointTest, SavesAStepASecondTime) {
  MF_ASSERT_OK(Save(7));
  std::vector<NamedTensor> other = {{"v", RandomTensor("v", {2})}};
  MF_ASSERT_OK(SaveCheckpoint(Path("root"), State(7), other, {}));
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(Path("root/step_00000007"));
  MF_ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->tensors().count("w"), 0u);
  EXPECT_EQ(checkpoint->tensors().count("v"), 1u);
  EXPECT_EQ(Names(Path("root")), (std::vector<std::string>{"latest", "step_00000007"}));
}

TEST_F(CheckpointTest, RefusesWhatCannotBeSaved) {
  Tensor w = RandomTensor("w", {2});
  std::vector<char> memory(64);
  Tensor on_device = Tensor::FromStorage(Storage::Wrap(memory.data(), 64, DeviceKind::kCuda, [] {}),
                                         {2}, DType::kF32, 0, 2);
  auto save = [&](int64_t step, std::vector<NamedTensor> tensors) {
    return SaveCheckpoint(Path("root"), State(step), tensors, {});
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(FailsWith(save(1, {{"w", w}, {"w", w}}), kInvalid, "tensor 'w' is given twice"));
  EXPECT_TRUE(FailsWith(save(-1, {{"w", w}}), kInvalid, "step -1"));
  EXPECT_TRUE(FailsWith(save(1, {{"d", on_device}}), kInvalid, "'d' is not in host memory"));
  EXPECT_TRUE(FailsWith(save(1, {{"u", Tensor()}}), kInvalid, "'u' is not in host memory"));
  EXPECT_EQ(Names(Path("root")), std::vector<std::string>());
  Put("file", "");
  EXPECT_TRUE(FailsWith(SaveCheckpoint(Path("file"), State(1), {}, {}),
                        absl::StatusCode::kAlreadyExists, Path("file")));
}

TEST_F(CheckpointTest, KeepsTheNewestAndSoMany) {
  for (int64_t step : {1, 2, 3, 4}) MF_ASSERT_OK(Save(step));
  MF_ASSERT_OK(Save(5, /*keep=*/2));
  EXPECT_EQ(Names(Path("root")),
            (std::vector<std::string>{"latest", "step_00000004", "step_00000005"}));
  // Someone went back to an earlier step: what was just saved stays, whatever its number.
  MF_ASSERT_OK(Save(3, /*keep=*/1));
  EXPECT_EQ(Names(Path("root")), (std::vector<std::string>{"latest", "step_00000003"}));
  ExpectWhole(LatestCheckpoint(Path("root")).value(), 3);
}

TEST_F(CheckpointTest, ReportsAWrongNameOrShape) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(Save(1).value());
  MF_ASSERT_OK(checkpoint);
  EXPECT_TRUE(FailsWith(checkpoint->Read("x", UnwrittenTensor({5, 256})),
                        absl::StatusCode::kNotFound, "step_00000001' has no tensor 'x'"));
  EXPECT_TRUE(FailsWith(checkpoint->Read("w", UnwrittenTensor({256, 5})),
                        absl::StatusCode::kInvalidArgument,
                        "tensor 'w' of '" + Path("root/step_00000001") +
                            "': has shape [5, 256], [256, 5] is wanted"));
}

TEST_F(CheckpointTest, ReportsADamagedShard) {
  const std::string path = Save(1).value(), shard = JoinPath(path, "shard-00000.safetensors");
  Flip(shard, -1);
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(path);
  MF_ASSERT_OK(checkpoint);
  absl::Status status = checkpoint->Read("w", UnwrittenTensor({5, 256}));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kDataLoss, "tensor 'w' of '" + path));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kDataLoss, shard));
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kDataLoss,
                        checkpoint->tensors().at("w").pieces[0].checksum));
}

TEST_F(CheckpointTest, ReportsMissingAndTruncatedFiles) {
  const std::string path = Save(1).value(), shard = JoinPath(path, "shard-00000.safetensors");
  const std::string bytes = ReadFile(shard).value();
  MF_ASSERT_OK(WriteFile(shard, bytes.substr(0, bytes.size() - 1)));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kInvalidArgument, shard));
  MF_ASSERT_OK(WriteFile(shard, ""));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kInvalidArgument, shard));
  MF_ASSERT_OK(RemoveTree(shard));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kNotFound, shard));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kNotFound, "tensor 'w'"));
  MF_ASSERT_OK(RemoveTree(JoinPath(path, "config.yaml")));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kNotFound, "config.yaml"));
  MF_ASSERT_OK(RemoveTree(path));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kNotFound, "index.json"));
}

TEST_F(CheckpointTest, ReportsADamagedConfig) {
  const std::string path = Save(1).value();
  Flip(JoinPath(path, "config.yaml"), 0);
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kDataLoss, "config.yaml"));
}

TEST_F(CheckpointTest, ReportsAShardOfAnotherCheckpoint) {
  const std::string path = Save(1).value(), shard = JoinPath(path, "shard-00000.safetensors");
  MF_ASSERT_OK(WriteSafetensors(shard, {{"w", RandomTensor("w", {5, 255})}}));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kInvalidArgument,
                        "is 1275 elements of F32, the index says 1280 of F32"));
  MF_ASSERT_OK(
      WriteSafetensors(shard, {{"w", RandomTensor("w", {5, 256}, {.dtype = DType::kF16})}}));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kInvalidArgument,
                        "is 1280 elements of F16, the index says 1280 of F32"));
  MF_ASSERT_OK(WriteSafetensors(shard, {{"v", RandomTensor("w", {5, 256})}}));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(path), absl::StatusCode::kNotFound, "no tensor 'w'"));
}

TEST_F(CheckpointTest, FindsTheLatest) {
  const std::string root = Path("root");
  EXPECT_TRUE(FailsWith(LatestCheckpoint(root), absl::StatusCode::kNotFound, root));
  for (int64_t step : {3, 1, 2}) MF_ASSERT_OK(Save(step));
  EXPECT_EQ(LatestCheckpoint(root).value(), Path("root/step_00000002"));  // saved last
  for (const char* broken :
       {"step_00000009\n", "", "../x\n", "step_2\n", "step_00000002.incomplete"}) {
    MF_ASSERT_OK(WriteFile(Path("root/latest"), broken));
    EXPECT_EQ(LatestCheckpoint(root).value(), Path("root/step_00000003")) << broken;
  }
  MF_ASSERT_OK(RemoveTree(Path("root/latest")));
  EXPECT_EQ(LatestCheckpoint(root).value(), Path("root/step_00000003"));
}

TEST_F(CheckpointTest, TakesNothingElseForACheckpoint) {
  const std::string root = Path("root");
  MF_ASSERT_OK(Save(5));
  const std::string index = ReadFile(Path("root/step_00000005/index.json")).value();
  for (const char* name : {"step_9", "step_+0000009", "step_00000009.incomplete", "step_00000009x",
                           "step_00000009.incomplete.replaced", "other"}) {
    Put(JoinPath(JoinPath(root, name), "index.json"), index);
  }
  MF_ASSERT_OK(MakeDirs(Path("root/step_00000010")));  // no index in it
  MF_ASSERT_OK(RemoveTree(Path("root/latest")));
  EXPECT_EQ(LatestCheckpoint(root).value(), Path("root/step_00000005"));
  // Saving tidies up after a writer, and touches nothing that is not a writer's.
  MF_ASSERT_OK(Save(6, /*keep=*/1));
  EXPECT_EQ(Names(root),
            (std::vector<std::string>{"latest", "other", "step_+0000009", "step_00000006",
                                      "step_00000009.incomplete.replaced", "step_00000009x",
                                      "step_00000010", "step_9"}));
}

TEST_F(CheckpointTest, UsesWhatWasAboutToBeReplaced) {
  const std::string root = Path("root"), path = Path("root/step_00000004");
  for (int64_t step : {4, 3}) MF_ASSERT_OK(Save(step));
  MF_ASSERT_OK(WriteFile(Path("root/latest"), "step_00000004\n"));
  // As after a kill between the two renames.
  MF_ASSERT_OK(RenameDurably(path, path + ".replaced"));
  ExpectWhole(LatestCheckpoint(root).value(), 4);
  EXPECT_EQ(LatestCheckpoint(root).value(), path + ".replaced");
  // The next writer puts it back.
  MF_ASSERT_OK(Save(5));
  ExpectWhole(path, 4);
  EXPECT_FALSE(FileExists(path + ".replaced"));
  EXPECT_EQ(LatestCheckpoint(root).value(), Path("root/step_00000005"));
}

}  // namespace
}  // namespace meshfold::parallel
