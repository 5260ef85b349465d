#include "train/metrics.h"

#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/io/file.h"
#include "nlohmann/json.hpp"

namespace meshfold::train {
namespace {

// The lines of `text` that belong to steps up to `last_step`. A line cut short by a kill is
// dropped.
std::string KeepSteps(const std::string& text, int64_t last_step) {
  std::string kept;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    nlohmann::json record = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    if (!record.is_object()) continue;
    auto step = record.find("step");
    if (step == record.end() || !step->is_number_integer()) continue;
    if (step->get<int64_t>() > last_step) continue;
    kept.append(line.begin(), line.end());
    kept.push_back('\n');
  }
  return kept;
}

}  // namespace

nlohmann::json ToJson(const StepMetrics& m) {
  nlohmann::json record = {{"step", m.step},
                           {"loss", m.loss},
                           {"lm_loss", m.lm_loss},
                           {"aux_loss", m.aux_loss},
                           {"z_loss", m.z_loss},
                           {"grad_norm", m.grad_norm},
                           {"lr", m.lr},
                           {"tokens", m.tokens},
                           {"tokens_per_second", m.tokens_per_second},
                           {"step_seconds", m.step_seconds},
                           {"mfu", m.mfu},
                           {"compute_seconds", m.compute_seconds},
                           {"comm_seconds", m.comm_seconds},
                           {"exposed_comm_seconds", m.exposed_comm_seconds},
                           {"comm_bytes", m.comm_bytes},
                           {"memory_peak_bytes", m.memory_peak_bytes}};
  if (m.has_experts) {
    record["dropped_tokens"] = m.dropped_tokens;
    record["expert_load"] = {{"max_over_mean", m.load_max_over_mean},
                             {"min", m.load_min},
                             {"p50", m.load_p50},
                             {"p95", m.load_p95}};
  }
  return record;
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Open(const std::string& path,
                                                                   int64_t last_step) {
  if (FileExists(path)) {
    MF_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
    std::string kept = KeepSteps(text, last_step);
    if (kept.size() != text.size()) MF_RETURN_IF_ERROR(WriteFile(path, kept));
  }
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) return FileError(errno, "open", path);
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(path, file));
}

MetricsWriter::~MetricsWriter() { std::fclose(file_); }

absl::Status MetricsWriter::Write(const StepMetrics& metrics) {
  return WriteRecord(ToJson(metrics));
}

absl::Status MetricsWriter::Write(int64_t step, const ValidationResult& validation) {
  return WriteRecord({{"step", step},
                      {"validation_loss", validation.loss},
                      {"validation_tokens", validation.tokens},
                      {"validation_samples", validation.samples}});
}

absl::Status MetricsWriter::WriteRecord(const nlohmann::json& record) {
  std::string line = record.dump() + "\n";
  bool ok =
      std::fwrite(line.data(), 1, line.size(), file_) == line.size() && std::fflush(file_) == 0;
  return ok ? absl::OkStatus() : FileError(errno, "write", path_);
}

}  // namespace meshfold::train
