// What a step reports: the record of metrics.jsonl and its file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moe/balance.h"
#include "nlohmann/json_fwd.hpp"

namespace meshfold::train {

struct StepMetrics {
  int64_t step = 0;       // steps done, this one included
  double loss = 0.0;      // lm_loss plus auxiliary losses
  double lm_loss = 0.0;   // mean over the global batch's counted targets
  double aux_loss = 0.0;  // balance losses, summed over layers
  double z_loss = 0.0;
  double grad_norm = 0.0;  // before clipping
  double lr = 0.0;
  int64_t tokens = 0;  // positions of the global batch, without padding
  double tokens_per_second = 0.0;
  double step_seconds = 0.0;
  double mfu = 0.0;  // share of the GEMM rate measured at start; 0 when not measured
  // Of this rank: of an operation from issue to completion, and for how long compute waited; what
  // is left of the step; bytes sent, by group.
  double compute_seconds = 0.0;
  double comm_seconds = 0.0;
  double exposed_comm_seconds = 0.0;
  std::map<std::string, int64_t> comm_bytes;
  int64_t memory_peak_bytes = 0;  // of the device pool, since the last step
  int64_t dropped_tokens = 0;     // token copies beyond expert capacity
  bool has_experts = false;
  double load_max_over_mean = 0.0, load_min = 0.0, load_p50 = 0.0, load_p95 = 0.0;
};

struct ValidationResult {
  double loss = 0.0;   // language-model loss, mean over all counted targets
  int64_t tokens = 0;  // counted targets
  int64_t samples = 0;
};

nlohmann::json ToJson(const StepMetrics& metrics);

// metrics.jsonl, one object a line. A resumed run first cuts lines of steps that it will redo.
class MetricsWriter {
 public:
  // Opens `path` for appending after dropping the lines whose step is above `last_step`.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Open(const std::string& path,
                                                             int64_t last_step);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  absl::Status Write(const StepMetrics& metrics);
  absl::Status Write(int64_t step, const ValidationResult& validation);

 private:
  absl::Status WriteRecord(const nlohmann::json& record);
  MetricsWriter(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}
  std::string path_;
  std::FILE* file_;
};

}  // namespace meshfold::train
