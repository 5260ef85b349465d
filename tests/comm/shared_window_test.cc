#include "comm/shared_window.h"

#include <sys/wait.h>
#include <unistd.h>

#include "comm/share_window.h"
#include "comm/thread_world.h"
#include "core/base/status_macros.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

constexpr SharedWindowShape kShape{.num_ranks = 3, .num_slots = 2, .slot_bytes = 128};

TEST(SharedWindowTest, SlotsAndProgressLieApartOnWholeLines) {
  const auto window = SharedWindow::Create(kShape).value();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(&window->progress(rank)) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(window->slot(rank, 1)) % 64, 0u);
    EXPECT_EQ(window->slot(rank, 1), window->slot(rank, 0) + 128);
    EXPECT_EQ(window->slot(rank, 2), window->slot(rank, 0)) << "used again";
    EXPECT_EQ(window->progress(rank).copied_in, 0);
    EXPECT_NE(&window->header(rank, 0), &window->header(rank, 1));
  }
  EXPECT_EQ(window->slot(1, 0), window->slot(0, 1) + 128);
  EXPECT_EQ(&window->progress(1), &window->progress(0) + 1);
}

TEST(SharedWindowTest, AnotherProcessSeesTheSameMemory) {
  const auto window = SharedWindow::Create(kShape).value();
  const SharedWindow::Address address = window->address();
  const pid_t child = fork();
  if (child == 0) {
    const auto same = SharedWindow::Open(kShape, address);
    if (!same.ok()) _exit(1);
    (*same)->slot(2, 1)[127] = 'x';
    (*same)->progress(2).copied_in.store(7, std::memory_order_release);
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(window->progress(2).copied_in.load(std::memory_order_acquire), 7);
  EXPECT_EQ(window->slot(2, 1)[127], 'x');
}

TEST(SharedWindowTest, AnAddressOfSomethingElseIsRefused) {
  const auto window = SharedWindow::Create(kShape).value();
  SharedWindow::Address address = window->address();
  ++address.nonce;
  EXPECT_EQ(SharedWindow::Open(kShape, address).status().code(), absl::StatusCode::kUnavailable);
  const SharedWindowShape other{.num_ranks = 3, .num_slots = 2, .slot_bytes = 4096};
  EXPECT_FALSE(SharedWindow::Open(other, window->address()).ok());
  address = window->address();
  window->CloseAddress();
  EXPECT_FALSE(SharedWindow::Open(kShape, address).ok());
}

TEST(SharedWindowTest, MoreThanTheMachineHasIsAnError) {
  const SharedWindowShape huge{.num_ranks = 2, .num_slots = 2, .slot_bytes = int64_t{1} << 60};
  EXPECT_FALSE(SharedWindow::Create(huge).ok());
}

TEST(ShareWindowTest, AllRanksMapOneWindow) {
  const absl::Status status = RunThreadWorld({.size = 3}, [](Communicator& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(const WindowOffer offer, ShareWindow(world, kShape));
    if (offer.window == nullptr) return absl::InternalError(offer.refusal);
    offer.window->progress(world.rank()).combined = world.rank() + 1;
    MF_ASSIGN_OR_RETURN(auto all_wrote, world.Barrier());
    MF_RETURN_IF_ERROR(all_wrote->HostWait(absl::Seconds(60)));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(offer.window->progress(rank).combined, rank + 1);
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ShareWindowTest, AllRanksHearThatThereIsNone) {
  const SharedWindowShape huge{.num_ranks = 2, .num_slots = 2, .slot_bytes = int64_t{1} << 60};
  const absl::Status status = RunThreadWorld({.size = 2}, [&](Communicator& world) -> absl::Status {
    MF_ASSIGN_OR_RETURN(const WindowOffer offer, ShareWindow(world, huge));
    EXPECT_EQ(offer.window, nullptr);
    EXPECT_FALSE(offer.refusal.empty());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace meshfold::comm
