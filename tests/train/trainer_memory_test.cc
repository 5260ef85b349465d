// Memory over a long run: what one step takes, the next must give back.
#include "tests/train/small_run.h"

namespace meshfold::train {
namespace {

class TrainerMemoryTest : public SmallRunTest {
 protected:
  static AllocatorStats Stats(Trainer& trainer) { return trainer.runtime().allocator().stats(); }
};

// With a learning rate of 0 experts get the same rows in every step, so the pool must not even grow
// by a block.
TEST_F(TrainerMemoryTest, TwoHundredStepsOnOneBatchTakeNothingNew) {
  std::unique_ptr<Trainer> trainer =
      MakeTrainer(SmallConfig(kSoftmaxMoe, {"optimizer.lr=0", "train.micro_batch_size=2"}));
  GlobalBatch batch = trainer->loader()->Next().value();
  AllocatorStats early;
  for (int step = 1; step <= 200; ++step) {
    MF_ASSERT_OK(trainer->Step(batch));
    if (step == 10) early = Stats(*trainer);
  }
  EXPECT_EQ(Stats(*trainer).live_bytes, early.live_bytes);
  EXPECT_EQ(Stats(*trainer).reserved_bytes, early.reserved_bytes);
  EXPECT_EQ(Stats(*trainer).num_system_allocations, early.num_system_allocations);
}

// Other batches give experts other numbers of rows, whose scratch may be of a size not seen before:
// a block now and then, within 5 %.
TEST_F(TrainerMemoryTest, TrainingAndValidatingDoesNotGrow) {
  std::unique_ptr<Trainer> trainer = MakeTrainer(
      SmallConfig(kSigmoidMoe, {"data.validation_fraction=0.3", "data.validation_by=block",
                                "moe.capacity_factor=0.75", "model.dtype=bf16"}));
  AllocatorStats early;
  int64_t peak = 0;
  for (int step = 1; step <= 200; ++step) {
    peak = Step(*trainer).memory_peak_bytes;
    if (step % 5 == 0) MF_ASSERT_OK(trainer->Validate(0));
    if (step == 10) early = Stats(*trainer);
  }
  AllocatorStats late = Stats(*trainer);
  EXPECT_EQ(late.live_bytes, early.live_bytes);
  EXPECT_LE(late.reserved_bytes, early.reserved_bytes + early.reserved_bytes / 20);
  EXPECT_GT(peak, late.live_bytes);
  EXPECT_LE(peak, late.reserved_bytes);
}

// Wherever the pool is full, it is a Status with the numbers.
TEST_F(TrainerMemoryTest, AnyLimitThatIsTooSmallIsReported) {
  std::unique_ptr<Trainer> unlimited = MakeTrainer(SmallConfig(kSoftmaxMoe));
  Step(*unlimited);
  MF_ASSERT_OK(unlimited->Step());
  const int64_t enough = Stats(*unlimited).reserved_bytes;
  int failed_to_build = 0, failed_to_step = 0;
  for (int64_t limit = 4096; limit < enough; limit += 4096) {
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(
        SmallConfig(kSoftmaxMoe, {absl::StrCat("memory.device_limit=", limit)}), {"none"}, logger_);
    absl::Status status = trainer.ok() ? (*trainer)->Step().status() : trainer.status();
    if (status.ok()) continue;
    EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, "pool 'device' is full"));
    ++(trainer.ok() ? failed_to_step : failed_to_build);
  }
  EXPECT_GT(failed_to_build, 3);
  EXPECT_GT(failed_to_step, 3);
}

}  // namespace
}  // namespace meshfold::train
