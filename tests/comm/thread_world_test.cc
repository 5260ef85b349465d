// What a world of threads does beyond the conformance cases: it sees both sides of every operation,
// so ranks that disagree are told so, and a rank that fails ends the others.
#include "comm/thread_world.h"

#include <atomic>

#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/exec_context.h"
#include "core/base/status_macros.h"
#include "core/tensor/allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

Tensor Empty(const Shape& shape, DType dtype = DType::kF32) {
  return Tensor::Contiguous(shape, dtype, SystemHostAllocator());
}

absl::Status WaitFor(absl::StatusOr<std::unique_ptr<Work>> work) {
  MF_RETURN_IF_ERROR(work.status());
  return (*work)->HostWait(kPatience);
}

// Runs `operation` on two ranks; each must fail with `message`.
void ExpectDisagreement(const std::function<absl::Status(Communicator&)>& operation,
                        const std::string& message) {
  const absl::Status status = RunThreadWorld({.size = 2}, [&](Communicator& world) {
    const absl::Status result = operation(world);
    EXPECT_EQ(result.code(), absl::StatusCode::kInvalidArgument) << result;
    EXPECT_THAT(std::string(result.message()), HasSubstr(message));
    return WaitFor(world.Barrier());  // the world goes on
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ThreadWorldTest, RanksThatDisagreeAreTold) {
  ExpectDisagreement(
      [](Communicator& world) {
        const Tensor x = Empty({2});
        return WaitFor(world.rank() == 0 ? world.AllReduce(x, x) : world.Barrier());
      },
      "[AllReduce #0 of group 'world', rank 0 of 2] meets [Barrier #0 of group 'world', rank 1 of "
      "2]: ranks call different operations");
  ExpectDisagreement(
      [](Communicator& world) {
        const Tensor x = Empty({2 + world.rank()});
        return WaitFor(world.AllReduce(x, x));
      },
      "rank 0 of 2] has f32 [2], [AllReduce #0 of group 'world', rank 1 of 2] has f32 [3]");
  ExpectDisagreement(
      [](Communicator& world) { return WaitFor(world.Broadcast(Empty({2}), world.rank())); },
      "rank 0 of 2] has root 0, [Broadcast #0 of group 'world', rank 1 of 2] has root 1");
  ExpectDisagreement(
      [](Communicator& world) {
        const Tensor x = Empty({2}, world.rank() == 0 ? DType::kF32 : DType::kI32);
        return WaitFor(world.rank() == 0 ? world.Send(x, 1) : world.Recv(x, 0));
      },
      "[Send #0 of group 'world', rank 0 of 2] sends f32 [2], [Recv #0 of group 'world', rank 1 of "
      "2] expects i32 [2]");
  ExpectDisagreement(
      [](Communicator& world) {
        const std::vector<int64_t> rows = {1, world.rank()};
        return WaitFor(world.AllToAllV(Empty({rows[0] + rows[1], 4}), rows,
                                       Empty({rows[0] + rows[1], 4}), rows));
      },
      "[AllToAllV #0 of group 'world', rank 0 of 2] sends 0 rows to rank 1, [AllToAllV #0 of group "
      "'world', rank 1 of 2] expects 1 from rank 0");
}

TEST(ThreadWorldTest, AFailingRankEndsTheOthersWithItsMessage) {
  std::atomic<int> ended = 0;
  const absl::Status status = RunThreadWorld({.size = 4}, [&](Communicator& world) -> absl::Status {
    if (world.rank() == 2) ThrowInvalidArgument("no such token 300");
    const absl::Status result = WaitFor(world.Barrier());
    EXPECT_EQ(result.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(std::string(result.message()), HasSubstr("rank 2: no such token 300"));
    ++ended;
    return result;
  });
  EXPECT_EQ(ended, 3);
  EXPECT_EQ(status, absl::InvalidArgumentError("rank 2: no such token 300"));
}

TEST(ThreadWorldTest, ASplitThatOneRankSkipsMissesItsDeadline) {
  const absl::Status status =
      RunThreadWorld({.size = 2, .deadline = absl::Milliseconds(20)}, [](Communicator& world) {
        return world.rank() == 0 ? world.Split(0, 0, "dp").status() : absl::OkStatus();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("[Split of group 'world', rank 0 of 2] is not over after 20ms"));
}

TEST(ThreadWorldTest, RanksHaveTheCallersContextUnderTheirName) {
  ExecContext context;
  context.num_threads = 3;
  ScopedExecContext scope(context);
  const absl::Status status = RunThreadWorld({.size = 3}, [](Communicator& world) {
    EXPECT_EQ(CurrentContext().num_threads, 3);
    EXPECT_EQ(CurrentContext().rank_tag, absl::StrCat("rank ", world.rank()));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace meshfold::comm
