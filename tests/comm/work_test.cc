#include "comm/work.h"

#include <stdexcept>

#include "core/base/check.h"
#include "core/tensor/allocator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace meshfold::comm {
namespace {

// Misses its deadline until told otherwise.
class ManualWork : public Work {
 public:
  explicit ManualWork(std::vector<Tensor> buffers = {})
      : Work("AllReduce #7 of group 'dp', rank 2 of 4", absl::Milliseconds(3), std::move(buffers)) {
  }
  void Finish(absl::Status status) { done_ = true, status_ = std::move(status); }
  bool Done() override { return done_; }

 private:
  absl::Status DoWait(absl::Duration) override {
    return done_ ? status_ : absl::DeadlineExceededError("");
  }
  bool done_ = false;
  absl::Status status_;
};

class IdleStream : public Stream {
 public:
  absl::Status Synchronize() override { return absl::OkStatus(); }
};

TEST(WorkTest, NamesTheOperationThatIsLate) {
  ManualWork work;
  const absl::Status late = work.HostWait(absl::Seconds(2));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(late.message(), "[AllReduce #7 of group 'dp', rank 2 of 4] is not over after 2s");
  work.Finish(absl::OkStatus());
  EXPECT_TRUE(work.HostWait(absl::Seconds(2)).ok());
}

TEST(WorkTest, KeepsTheFirstResult) {
  ManualWork work;
  work.Finish(absl::AbortedError("gone"));
  EXPECT_EQ(work.HostWait(absl::Seconds(2)).code(), absl::StatusCode::kAborted);
  work.Finish(absl::OkStatus());
  EXPECT_EQ(work.HostWait(absl::Seconds(2)).code(), absl::StatusCode::kAborted);
}

TEST(WorkTest, HoldsItsBuffersUntilItIsOver) {
  Tensor buffer = Tensor::Contiguous({4}, DType::kF32, SystemHostAllocator());
  std::weak_ptr<Storage> storage = buffer.storage();
  ManualWork work({std::move(buffer)});
  (void)work.HostWait(absl::Seconds(0));
  EXPECT_FALSE(storage.expired()) << "given up while the operation still runs";
  work.Finish(absl::OkStatus());
  (void)work.HostWait(absl::Seconds(0));
  EXPECT_TRUE(storage.expired());
}

TEST(WorkTest, WaitOnThrowsTheFailure) {
  IdleStream stream;
  ManualWork work;
  EXPECT_THROW(work.WaitOn(stream), StatusError);
  work.Finish(absl::OkStatus());
  work.WaitOn(stream);
}

TEST(WorkTest, UnwindingMayDropWork) {
  EXPECT_THROW(
      {
        ManualWork work;
        throw std::runtime_error("elsewhere");
      },
      std::runtime_error);
}

TEST(WorkDeathTest, DroppingWorkUnwaitedIsABug) {
  EXPECT_DEATH({ ManualWork work; }, "AllReduce #7 of group 'dp', rank 2 of 4 was never waited on");
}

}  // namespace
}  // namespace meshfold::comm
