#include "parallel/rank_texts.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "tests/core/io/scratch.h"

namespace meshfold::parallel {
namespace {

// The statuses that the ranks get who give `given`.
std::vector<absl::Status> Agreed(const std::vector<absl::Status>& given) {
  std::vector<absl::Status> agreed(given.size());
  MF_EXPECT_OK(
      comm::RunThreadWorld({.size = static_cast<int>(given.size())}, [&](comm::Communicator& end) {
        const size_t rank = static_cast<size_t>(end.rank());
        agreed[rank] = AgreeOnStatus(end, given[rank]);
        // The group is in step: it can go on.
        MF_RETURN_IF_ERROR(AgreeOnStatus(end, absl::OkStatus()));
        return absl::OkStatus();
      }));
  return agreed;
}

TEST(AgreeOnStatusTest, IsTheFirstRanksErrorOnAllRanks) {
  const absl::Status ok, full = absl::ResourceExhaustedError("'/x' is full"),
                         empty = absl::NotFoundError("");
  EXPECT_EQ(Agreed({ok, ok, ok}), std::vector<absl::Status>(3, ok));
  EXPECT_EQ(Agreed({ok, full, empty}),
            std::vector<absl::Status>(3, absl::ResourceExhaustedError("rank 1: '/x' is full")));
  EXPECT_EQ(Agreed({empty, full, ok}),
            std::vector<absl::Status>(3, absl::NotFoundError("rank 0: ")));
  EXPECT_EQ(Agreed({full}), std::vector<absl::Status>(1, full));
}

TEST(AgreeOnStatusTest, CutsLongMessages) {
  const std::string text(10000, 'x');
  const std::vector<absl::Status> agreed = Agreed({absl::OkStatus(), absl::InternalError(text)});
  EXPECT_EQ(agreed[0], absl::InternalError("rank 1: " + text.substr(0, 4096)));
  EXPECT_EQ(agreed[1], agreed[0]);
}

TEST(GatherTextsTest, BringsTextsOfAnyLengthToRankZero) {
  for (int size : {1, 2, 5}) {
    std::vector<std::string> wanted;
    for (int rank = 0; rank < size; ++rank) {
      wanted.push_back(rank == 1 ? ""
                                 : std::string(static_cast<size_t>(rank * 70000 + 3), 'a' + rank));
    }
    MF_EXPECT_OK(comm::RunThreadWorld({.size = size}, [&](comm::Communicator& end) {
      MF_ASSIGN_OR_RETURN(std::vector<std::string> texts,
                          GatherTexts(end, wanted[static_cast<size_t>(end.rank())]));
      EXPECT_EQ(texts, end.rank() == 0 ? wanted : std::vector<std::string>());
      return absl::OkStatus();
    }));
  }
}

}  // namespace
}  // namespace meshfold::parallel
