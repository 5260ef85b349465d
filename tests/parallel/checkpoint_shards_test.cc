// Checkpoints that many ranks wrote: shards on any dim, and flat ZeRO slices of shards.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/exec_context.h"
#include "parallel/checkpoint.h"
#include "parallel/checkpoint_dir.h"
#include "tests/core/io/scratch.h"
#include "tests/testing/expect_close.h"
#include "tests/testing/tensors.h"

namespace meshfold::parallel {
namespace {

using testing::Padding;

using Dims = std::vector<int64_t>;

// A part of a tensor as one rank holds it.
struct Share {
  int rank;
  Dims start, extent;
  int64_t flat_begin, flat_end;
};

class CheckpointShardsTest : public ScratchTest {
 protected:
  CheckpointShardsTest() : scope_(context_) {}

  // The elements of `share`, one by one.
  static Tensor Cut(const Tensor& whole, const Share& share) {
    const int64_t size = SizeOf(whole.dtype());
    Tensor part = Tensor::Contiguous({share.flat_end - share.flat_begin}, whole.dtype());
    for (int64_t at = share.flat_begin; at < share.flat_end; ++at) {
      int64_t rest = at, flat = 0, stride = 1;
      for (int d = whole.rank() - 1; d >= 0; --d) {
        const size_t i = static_cast<size_t>(d);
        flat += (share.start[i] + rest % share.extent[i]) * stride;
        rest /= share.extent[i];
        stride *= whole.dim(d);
      }
      const int64_t row = flat / whole.cols(), col = flat % whole.cols();
      std::memcpy(static_cast<char*>(part.raw()) + (at - share.flat_begin) * size,
                  static_cast<const char*>(whole.raw()) + (row * whole.pitch() + col) * size,
                  static_cast<size_t>(size));
    }
    return part;
  }

  // Adds `whole`, cut into `shares`, to what Write will write.
  void Add(const std::string& name, const Tensor& whole, const std::vector<Share>& shares) {
    CheckpointTensorInfo& info = index_.tensors[name];
    info.dtype = whole.dtype();
    info.shape = whole.shape();
    for (const Share& share : shares) {
      const std::string key = absl::StrCat(name, "#", info.pieces.size());
      Tensor part = Cut(whole, share);
      std::string bytes(static_cast<const char*>(part.raw()), static_cast<size_t>(part.nbytes()));
      info.pieces.push_back({absl::StrCat("shard-", share.rank), key, share.start, share.extent,
                             share.flat_begin, share.flat_end, ChecksumOf(bytes)});
      files_[absl::StrCat("shard-", share.rank)].push_back({key, part});
    }
  }

  absl::StatusOr<Checkpoint> WriteAndOpen() {
    const std::string path = Path("step_00000001");
    for (const auto& [file, tensors] : files_) {
      EXPECT_TRUE(MakeDirs(path).ok());
      MF_EXPECT_OK(WriteSafetensors(JoinPath(path, file), tensors));
    }
    Put("step_00000001/config.yaml", "");
    Put(JoinPath("step_00000001", kCheckpointIndexName), FormatIndex(index_).value());
    return Checkpoint::Open(path);
  }

  // Reads `name` into rows with and without guards between them.
  static void ExpectReads(const Checkpoint& checkpoint, const std::string& name,
                          const Tensor& whole) {
    for (Padding padding : {Padding::kNone, Padding::kGuarded}) {
      Tensor read = testing::UnwrittenTensor(whole.shape(), whole.dtype(), padding);
      MF_EXPECT_OK(checkpoint.Read(name, read));
      testing::ExpectBitEqual(read, whole, name);
      EXPECT_TRUE(testing::GuardIsIntact(read)) << name;
    }
  }

  ExecContext context_{.allocator = &SystemHostAllocator()};
  ScopedExecContext scope_;
  CheckpointIndex index_;
  std::map<std::string, std::vector<NamedTensor>> files_;
};

TEST_F(CheckpointShardsTest, ReadsTwoShardsOnDim1OneOfThemInFlatHalves) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor whole = testing::RandomTensor("w", {7, 256}, {.dtype = dtype});
    const std::string name = DTypeName(dtype);
    // Columns 0 to 99 on rank 0, cut inside a row (3 * 100 + 33); the other columns on rank 2.
    Add(name, whole,
        {{0, {0, 0}, {7, 100}, 0, 333},
         {1, {0, 0}, {7, 100}, 333, 700},
         {2, {0, 100}, {7, 156}, 0, 1092}});
  }
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectReads(*checkpoint, DTypeName(dtype),
                testing::RandomTensor("w", {7, 256}, {.dtype = dtype}));
  }
}

TEST_F(CheckpointShardsTest, ReadsExpertsCutOverThreeDims) {
  // [experts, 2, hidden, model]: experts over two ranks, hidden over two of each, unevenly.
  Tensor whole = testing::RandomTensor("e", {3, 2, 5, 4});
  std::vector<Share> shares;
  int rank = 0;
  for (auto [expert, experts] : {std::pair<int64_t, int64_t>{0, 2}, {2, 1}}) {
    for (auto [row, rows] : {std::pair<int64_t, int64_t>{0, 3}, {3, 2}}) {
      const int64_t volume = experts * 2 * rows * 4;
      shares.push_back({rank++, {expert, 0, row, 0}, {experts, 2, rows, 4}, 0, volume / 3});
      shares.push_back({rank++, {expert, 0, row, 0}, {experts, 2, rows, 4}, volume / 3, volume});
    }
  }
  shares.push_back({rank, {3, 0, 0, 0}, {0, 2, 5, 4}, 0, 0});  // a rank without experts
  Add("experts", whole, shares);
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  ExpectReads(*checkpoint, "experts", whole);
}

TEST_F(CheckpointShardsTest, ReadsFlatSlicesOfWholeTensors) {
  Tensor matrix = testing::RandomTensor("m", {6, 5}), vector = testing::RandomTensor("v", {11});
  // Slices that start and end inside rows and span whole ones; an empty one; out of order.
  Add("matrix", matrix,
      {{0, {0, 0}, {6, 5}, 23, 30}, {1, {0, 0}, {6, 5}, 0, 3}, {2, {0, 0}, {6, 5}, 3, 23}});
  Add("vector", vector, {{0, {0}, {11}, 0, 4}, {1, {0}, {11}, 4, 11}, {2, {0}, {11}, 11, 11}});
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  ExpectReads(*checkpoint, "matrix", matrix);
  ExpectReads(*checkpoint, "vector", vector);
}

// Boxes of the experts above, each into rows with guards between them, against a cut of the whole.
TEST_F(CheckpointShardsTest, ReadsBoxes) {
  Tensor whole = testing::RandomTensor("e", {3, 2, 5, 4}, {.dtype = DType::kBF16});
  Add("experts", whole,
      {{0, {0, 0, 0, 0}, {2, 2, 3, 4}, 0, 21},
       {1, {0, 0, 0, 0}, {2, 2, 3, 4}, 21, 48},
       {2, {2, 0, 0, 0}, {1, 2, 3, 4}, 0, 24},
       {3, {0, 0, 3, 0}, {3, 2, 2, 4}, 0, 48}});
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  for (const Box& box : {Box{{0, 0, 0, 0}, {3, 2, 5, 4}}, Box{{1, 0, 0, 0}, {2, 2, 5, 4}},
                         Box{{0, 1, 2, 0}, {3, 1, 2, 4}}, Box{{0, 0, 1, 3}, {3, 2, 4, 1}},
                         Box{{2, 1, 4, 2}, {1, 1, 1, 1}}, Box{{3, 0, 0, 0}, {0, 2, 5, 4}}}) {
    const Tensor wanted = testing::UnwrittenTensor(box.shape(), DType::kBF16);
    CopyFromWhole(whole, box, wanted);
    const Tensor read =
        testing::UnwrittenTensor(box.shape(), DType::kBF16, testing::Padding::kGuarded);
    MF_EXPECT_OK(checkpoint->ReadBox("experts", box, read));
    testing::ExpectBitEqual(read, wanted, box.ToString());
    // Converted on the way.
    const Tensor wide = testing::UnwrittenTensor(box.shape());
    MF_EXPECT_OK(checkpoint->ReadBox("experts", box, wide));
    testing::ExpectClose(wide, wanted, 0, box.ToString());
  }
}

TEST_F(CheckpointShardsTest, RefusesBoxesThatDoNotFit) {
  Add("w", testing::RandomTensor("w", {4, 4}), {{0, {0, 0}, {4, 4}, 0, 16}});
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  auto read = [&](const Box& box, const Shape& shape) {
    return checkpoint->ReadBox("w", box, testing::UnwrittenTensor(shape));
  };
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(
      FailsWith(read({{0, 2}, {4, 3}}, {4, 3}), kInvalid, "shape [4, 4], [0:4, 2:5] of it"));
  EXPECT_TRUE(FailsWith(read({{0, -1}, {4, 3}}, {4, 3}), kInvalid, "[0:4, -1:2]"));
  EXPECT_TRUE(FailsWith(read({{0}, {4}}, {4}), kInvalid, "[0:4] of it"));
  EXPECT_TRUE(FailsWith(read({{0, 0}, {2, 4}}, {4, 2}), kInvalid, "into a tensor of shape [4, 2]"));
  EXPECT_TRUE(FailsWith(checkpoint->ReadBox("v", {{0}, {1}}, testing::UnwrittenTensor({1})),
                        absl::StatusCode::kNotFound, "no tensor 'v'"));
}

// A rank is not stopped by, and does not pay for, pieces of which it holds nothing.
TEST_F(CheckpointShardsTest, LooksOnlyAtThePiecesOfABox) {
  Tensor whole = testing::RandomTensor("w", {4, 4});
  // Rows 0 and 1, then 2, then 3: the last two are flat parts of one box.
  Add("w", whole,
      {{0, {0, 0}, {2, 4}, 0, 8}, {1, {2, 0}, {2, 4}, 0, 4}, {2, {2, 0}, {2, 4}, 4, 8}});
  index_.tensors["w"].pieces[1].checksum = ChecksumOf("something else");
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  for (int64_t row = 0; row < 4; ++row) {
    const Tensor read = testing::UnwrittenTensor({1, 4});
    const absl::Status status = checkpoint->ReadBox("w", {{row, 0}, {1, 4}}, read);
    if (row == 2) {
      EXPECT_TRUE(FailsWith(status, absl::StatusCode::kDataLoss, "'w#1' of '"));
    } else {
      MF_EXPECT_OK(status);
      testing::ExpectBitEqual(read, whole.Narrow(row, 1));
    }
  }
}

TEST_F(CheckpointShardsTest, NamesTheShardThatIsDamagedOrMissing) {
  Tensor whole = testing::RandomTensor("w", {4, 4});
  Add("w", whole, {{0, {0, 0}, {4, 2}, 0, 8}, {1, {0, 2}, {4, 2}, 0, 8}});
  index_.tensors["w"].pieces[1].checksum = ChecksumOf("something else");
  absl::StatusOr<Checkpoint> checkpoint = WriteAndOpen();
  MF_ASSERT_OK(checkpoint);
  EXPECT_TRUE(FailsWith(checkpoint->Read("w", testing::UnwrittenTensor({4, 4})),
                        absl::StatusCode::kDataLoss, "'w#1' of '" + Path("step_00000001/shard-1")));
  MF_ASSERT_OK(RemoveTree(Path("step_00000001/shard-1")));
  EXPECT_TRUE(FailsWith(Checkpoint::Open(Path("step_00000001")), absl::StatusCode::kNotFound,
                        Path("step_00000001/shard-1")));
}

}  // namespace
}  // namespace meshfold::parallel
