#include "parallel/checkpoint_pieces.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"

namespace meshfold::parallel {
namespace {

using Dims = std::vector<int64_t>;

CheckpointPiece Piece(Dims start, Dims extent, int64_t flat_begin, int64_t flat_end) {
  CheckpointPiece piece;
  piece.start = std::move(start);
  piece.extent = std::move(extent);
  piece.flat_begin = flat_begin;
  piece.flat_end = flat_end;
  return piece;
}

CheckpointTensorInfo Info(Dims shape, std::vector<CheckpointPiece> pieces) {
  CheckpointTensorInfo info;
  info.shape = Shape(shape);
  info.pieces = std::move(pieces);
  return info;
}

// CheckTiling's message, "" when OK.
std::string Refusal(const CheckpointTensorInfo& info) {
  absl::Status status = CheckTiling(info);
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

void ExpectRefused(const CheckpointTensorInfo& info, absl::string_view part) {
  EXPECT_TRUE(absl::StrContains(Refusal(info), part)) << "got '" << Refusal(info) << "'";
}

TEST(CheckTilingTest, AcceptsWholeTensorsScalarsAndEmptyTensors) {
  EXPECT_EQ(Refusal(Info({3, 4}, {Piece({0, 0}, {3, 4}, 0, 12)})), "");
  EXPECT_EQ(Refusal(Info({}, {Piece({}, {}, 0, 1)})), "");
  EXPECT_EQ(Refusal(Info({0, 4}, {})), "");
  EXPECT_EQ(Refusal(Info({0, 4}, {Piece({0, 0}, {0, 4}, 0, 0)})), "");
}

TEST(CheckTilingTest, AcceptsShardsOnAnyDimAndFlatPartsOfThem) {
  // Columns 0-2 in one box, cut into two flat parts inside a row; columns 3-4 in the other.
  EXPECT_EQ(Refusal(Info({4, 5}, {Piece({0, 3}, {4, 2}, 0, 8), Piece({0, 0}, {4, 3}, 7, 12),
                                  Piece({0, 0}, {4, 3}, 0, 7)})),
            "");
  // Experts over one axis, rows over another, and a rank whose share is empty.
  EXPECT_EQ(Refusal(Info({2, 4, 3},
                         {Piece({0, 0, 0}, {1, 2, 3}, 0, 6), Piece({0, 2, 0}, {1, 2, 3}, 0, 6),
                          Piece({1, 0, 0}, {1, 4, 3}, 0, 12), Piece({1, 4, 0}, {1, 0, 3}, 0, 0)})),
            "");
}

TEST(CheckTilingTest, RefusesHolesAndOverlaps) {
  ExpectRefused(Info({4}, {}), "has 4 elements in no piece");
  ExpectRefused(Info({4}, {Piece({0}, {3}, 0, 3)}), "has 1 elements in no piece");
  ExpectRefused(Info({4}, {Piece({0}, {4}, 0, 2), Piece({0}, {4}, 3, 4)}),
                "elements [2, 3) of [0, 4) in no piece");
  ExpectRefused(Info({4}, {Piece({0}, {4}, 0, 3), Piece({0}, {4}, 2, 4)}),
                "elements [2, 3) of [0, 4) in two pieces");
  ExpectRefused(Info({4}, {Piece({0}, {4}, 0, 2)}), "elements [2, 4) of [0, 4) in no piece");
  ExpectRefused(Info({}, {Piece({}, {}, 0, 1), Piece({}, {}, 0, 1)}), "in two pieces");
  // Boxes of the right total size that overlap: first on dim 1 alone, then in a corner.
  ExpectRefused(Info({2, 4}, {Piece({0, 0}, {2, 2}, 0, 4), Piece({0, 1}, {2, 2}, 0, 4)}),
                "of [0, 2) x [0, 2) and of [0, 2) x [1, 3)");
  ExpectRefused(Info({3, 3}, {Piece({0, 0}, {2, 2}, 0, 4), Piece({1, 1}, {2, 2}, 0, 4),
                              Piece({2, 0}, {1, 1}, 0, 1)}),
                "in two pieces");
}

TEST(CheckTilingTest, RefusesPiecesOutsideTheTensor) {
  constexpr int64_t kHuge = INT64_MAX;
  ExpectRefused(Info({4}, {Piece({1}, {4}, 0, 4)}), "outside its shape [4]");
  ExpectRefused(Info({4}, {Piece({-1}, {4}, 0, 4)}), "outside");
  ExpectRefused(Info({4}, {Piece({0}, {-4}, 0, 4)}), "outside");
  ExpectRefused(Info({4}, {Piece({0}, {4}, 0, 5)}), "outside");
  ExpectRefused(Info({4}, {Piece({0}, {4}, -1, 4)}), "outside");
  ExpectRefused(Info({4}, {Piece({0}, {4}, 3, 2)}), "outside");
  ExpectRefused(Info({4}, {Piece({kHuge}, {kHuge}, 0, 4)}), "outside");
  ExpectRefused(Info({2, 2}, {Piece({0}, {2}, 0, 2)}), "outside");
  ExpectRefused(Info({2}, {Piece({0, 0}, {2, 1}, 0, 2)}), "outside");
}

TEST(CheckTilingTest, RefusesShapesThatAreNotPossible) {
  ExpectRefused(Info({-1}, {}), "[-1], which is not possible");
  ExpectRefused(Info({int64_t{1} << 32, int64_t{1} << 32}, {}), "not possible");
  ExpectRefused(Info({int64_t{1} << 62}, {}), "not possible");  // too many bytes, not elements
  ExpectRefused(Info({int64_t{1} << 40, int64_t{1} << 40, 0}, {}), "not possible");
  ExpectRefused(Info(Dims(33, 1), {}), "has 33 dims");
}

TEST(CheckTilingTest, TakesNoLongerForHugeTensors) {
  constexpr int64_t kRows = int64_t{1} << 40;  // element by element this would take days
  EXPECT_EQ(Refusal(Info({kRows, 2}, {Piece({0, 0}, {kRows, 1}, 0, kRows),
                                      Piece({0, 1}, {kRows, 1}, 0, kRows)})),
            "");
}

// Elements of the tensor in the piece's order, one by one.
std::vector<int64_t> BruteForce(const CheckpointPiece& piece, const Shape& shape) {
  std::vector<int64_t> globals;
  Shape box{absl::MakeConstSpan(piece.extent)};
  for (int64_t at = piece.flat_begin; at < piece.flat_end; ++at) {
    int64_t rest = at, global = 0, stride = 1;
    for (int d = shape.rank() - 1; d >= 0; --d) {
      global += (piece.start[static_cast<size_t>(d)] + rest % box[d]) * stride;
      rest /= box[d];
      stride *= shape[d];
    }
    globals.push_back(global);
  }
  return globals;
}

TEST(ForEachCommonRunTest, VisitsTheElementsOfEveryBoxInOrder) {
  const Shape shape{3, 2, 4};
  const Box whole = Box::Whole(shape);
  int64_t boxes = 0;
  // Every box of the tensor, each with every flat part.
  for (int64_t box = 0; box < 3 * 3 * 2 * 2 * 4 * 4; ++box) {
    Dims start = {box % 3, box / 9 % 2, box / 36 % 4};
    Dims extent = {box / 3 % 3 + 1, box / 18 % 2 + 1, box / 144 % 4 + 1};
    bool inside = true;
    int64_t volume = 1;
    for (int d = 0; d < 3; ++d) {
      inside = inside && start[static_cast<size_t>(d)] + extent[static_cast<size_t>(d)] <= shape[d];
      volume *= extent[static_cast<size_t>(d)];
    }
    if (!inside) continue;
    ++boxes;
    for (int64_t begin = 0; begin <= volume; ++begin) {
      for (int64_t end = begin; end <= volume; ++end) {
        CheckpointPiece piece = Piece(start, extent, begin, end);
        std::vector<int64_t> globals;
        ForEachCommonRun(piece, whole, [&](int64_t in_piece, int64_t global, int64_t count) {
          ASSERT_EQ(in_piece, static_cast<int64_t>(globals.size()));
          ASSERT_GT(count, 0);
          for (int64_t i = 0; i < count; ++i) globals.push_back(global + i);
        });
        ASSERT_EQ(globals, BruteForce(piece, shape)) << "box " << box;
      }
    }
  }
  EXPECT_EQ(boxes, 6 * 3 * 10);
}

TEST(ForEachCommonRunTest, JoinsWhatIsContiguous) {
  auto runs = [](const CheckpointPiece& piece, const Shape& shape) {
    int64_t count = 0;
    ForEachCommonRun(piece, Box::Whole(shape), [&](int64_t, int64_t, int64_t) { ++count; });
    return count;
  };
  EXPECT_EQ(runs(Piece({0, 0, 0}, {4, 5, 6}, 0, 120), {4, 5, 6}), 1);  // the whole
  EXPECT_EQ(runs(Piece({1, 0, 0}, {2, 5, 6}, 0, 60), {4, 5, 6}), 1);   // some of dim 0
  EXPECT_EQ(runs(Piece({0, 0, 0}, {4, 5, 6}, 7, 100), {4, 5, 6}), 1);  // a flat slice
  EXPECT_EQ(runs(Piece({0, 1, 0}, {4, 2, 6}, 0, 48), {4, 5, 6}), 4);   // one run an entry of dim 0
  EXPECT_EQ(runs(Piece({0, 0, 1}, {4, 5, 2}, 0, 40), {4, 5, 6}), 20);
  EXPECT_EQ(runs(Piece({}, {}, 0, 1), {}), 1);
  EXPECT_EQ(runs(Piece({0}, {0}, 0, 0), {0}), 0);
}

// Every pair of boxes of a tensor, one of them in three flat parts.
TEST(ForEachCommonRunTest, FindsTheElementsThatPieceAndBoxShare) {
  const Shape shape{3, 2, 3};
  std::vector<Box> boxes;
  for (int64_t code = 0; code < 3 * 4 * 2 * 3 * 3 * 4; ++code) {
    Box box{{code % 3, code / 12 % 2, code / 72 % 3},
            {code / 3 % 4, code / 24 % 3, code / 216 % 4}};
    bool inside = true;
    for (size_t d = 0; d < 3; ++d) {
      inside = inside && box.start[d] + box.extent[d] <= shape[static_cast<int>(d)];
    }
    if (inside) boxes.push_back(box);
  }
  for (const Box& held : boxes) {
    const int64_t volume = held.shape().numel();
    for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, volume / 3},
                              {volume / 3, volume / 2},
                              {volume / 2, volume}}) {
      const CheckpointPiece piece = Piece(held.start, held.extent, begin, end);
      const std::vector<int64_t> in_piece = BruteForce(piece, shape);
      for (const Box& box : boxes) {
        const std::vector<int64_t> in_box =
            BruteForce(Piece(box.start, box.extent, 0, box.shape().numel()), shape);
        std::vector<int64_t> common, found;
        for (int64_t global : in_piece) {
          if (std::count(in_box.begin(), in_box.end(), global) > 0) common.push_back(global);
        }
        ForEachCommonRun(piece, box, [&](int64_t from, int64_t to, int64_t count) {
          for (int64_t i = 0; i < count; ++i) {
            found.push_back(in_piece.at(static_cast<size_t>(from + i)));
            ASSERT_EQ(in_box.at(static_cast<size_t>(to + i)), found.back());
          }
        });
        ASSERT_EQ(found, common) << held.ToString() << " and " << box.ToString();
      }
    }
  }
}

}  // namespace
}  // namespace meshfold::parallel
