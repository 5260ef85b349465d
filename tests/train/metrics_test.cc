// metrics.jsonl over resumes, and its keys.
#include "train/metrics.h"

#include <signal.h>
#include <sys/resource.h>

#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/core/io/scratch.h"

namespace meshfold::train {
namespace {

constexpr char kStep9[] =
    "{\"step\":9,\"validation_loss\":0.5,\"validation_samples\":2,\"validation_tokens\":7}\n";

class MetricsWriterTest : public ScratchTest {
 protected:
  // The file after a run that goes on after `last_step` and writes step 9.
  std::string AfterResume(const std::string& before, int64_t last_step) {
    std::string path = Put("metrics.jsonl", before);
    auto writer = MetricsWriter::Open(path, last_step);
    MF_EXPECT_OK(writer);
    MF_EXPECT_OK((*writer)->Write(9, {.loss = 0.5, .tokens = 7, .samples = 2}));
    return ReadFile(path).value();
  }
};

TEST_F(MetricsWriterTest, KeepsLinesUpToTheCheckpoint) {
  std::string kept = "{\"loss\":0.10000000000000001,\"step\":1}\n{\"step\":2}\n";
  std::string validation = "{\"step\":2,\"validation_loss\":3.5}\n";
  EXPECT_EQ(
      AfterResume(kept + validation + "{\"step\":3}\n{\"step\":3,\"validation_loss\":1}\n", 2),
      kept + validation + std::string(kStep9));
  EXPECT_EQ(AfterResume(kept, 0), kStep9);
}

TEST_F(MetricsWriterTest, DropsWhatAKillLeftHalf) {
  EXPECT_EQ(AfterResume("{\"step\":1}\n{\"step\":2,\"lo", 5),
            "{\"step\":1}\n" + std::string(kStep9));
  // Cut just before the line's end: a whole record, whose line must still end.
  EXPECT_EQ(AfterResume("{\"step\":1}\n{\"step\":2}", 5),
            "{\"step\":1}\n{\"step\":2}\n" + std::string(kStep9));
  EXPECT_EQ(AfterResume("junk\n[1]\n{\"loss\":1}\n{\"step\":1}\n", 5),
            "{\"step\":1}\n" + std::string(kStep9));
}

TEST_F(MetricsWriterTest, StartsAFileAndNamesOneItCannotWrite) {
  MF_EXPECT_OK(MetricsWriter::Open(Path("new.jsonl"), 0));
  EXPECT_TRUE(FileExists(Path("new.jsonl")));
  std::string missing = Path("no/folder/metrics.jsonl");
  EXPECT_TRUE(FailsWith(MetricsWriter::Open(missing, 0), absl::StatusCode::kNotFound, missing));
}

// A file size limit stands for a full disk.
TEST_F(MetricsWriterTest, AFullDiskIsReported) {
  std::string path = Path("metrics.jsonl");
  auto writer = MetricsWriter::Open(path, 0).value();
  rlimit unlimited;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  auto handler = signal(SIGXFSZ, SIG_IGN);
  rlimit small = {10, unlimited.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  absl::Status status = writer->Write(StepMetrics());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(FailsWith(status, absl::StatusCode::kResourceExhausted, path));
}

// The keys that users' scripts read.
TEST(StepMetricsTest, HasTheseKeys) {
  StepMetrics metrics;
  metrics.comm_bytes["dp"] = 12;
  nlohmann::json dense = ToJson(metrics);
  for (const char* key : {"step", "loss", "lm_loss", "aux_loss", "z_loss", "grad_norm", "lr",
                          "tokens", "tokens_per_second", "step_seconds", "mfu", "compute_seconds",
                          "comm_seconds", "exposed_comm_seconds", "memory_peak_bytes"}) {
    EXPECT_TRUE(dense.contains(key) && dense[key].is_number()) << key;
  }
  EXPECT_EQ(dense["comm_bytes"]["dp"], 12);
  EXPECT_FALSE(dense.contains("expert_load"));
  metrics.has_experts = true;
  nlohmann::json moe = ToJson(metrics);
  EXPECT_TRUE(moe.contains("dropped_tokens"));
  for (const char* key : {"max_over_mean", "min", "p50", "p95"}) {
    EXPECT_TRUE(moe["expert_load"].contains(key)) << key;
  }
}

}  // namespace
}  // namespace meshfold::train
