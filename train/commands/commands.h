// The subcommands of `meshfold`: options as parsed, and what runs. main.cc alone knows the argument
// parser. Each returns a Status whose message is the one sentence that the user sees.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace meshfold::train {

struct TrainOptions {
  std::string config_path;
  std::vector<std::string> overrides;  // "section.key=value"
  std::string resume = "auto";         // auto, none, or a checkpoint or run directory
};
absl::Status RunTrain(const TrainOptions& options);

// Where a model comes from: exactly one of the two.
struct ModelSource {
  std::string checkpoint;  // a checkpoint directory, or a run or checkpoints directory (its newest)
  std::string hf;          // a Hugging Face directory
  std::vector<std::string> overrides;
};

struct EvalOptions {
  ModelSource source;
  std::string tokens_path;
  std::string out_path;  // empty: loss only
};
absl::Status RunEval(const EvalOptions& options);

struct GenerateCommandOptions {
  ModelSource source;
  std::string prompt;
  std::vector<int32_t> prompt_ids;  // instead of a prompt: for models without a tokenizer here
  int64_t max_new_tokens = 128;
  double temperature = 0.0;
  int64_t top_k = 0;
  uint64_t seed = 0;
};
absl::Status RunGenerate(const GenerateCommandOptions& options);

struct ConvertOptions {
  std::string to;  // hf or meshfold
  std::string in_dir, out_dir;
  std::string expert_form = "split";  // of an hf output: split or fused
  int64_t max_shard_bytes = 5'000'000'000;
};
absl::Status RunConvert(const ConvertOptions& options);

struct ConfigOptions {
  bool doc = false, schema = false;
  std::string resolve_path;
  std::vector<std::string> overrides;
};
absl::Status RunConfig(const ConfigOptions& options);

struct PlanOptions {
  std::string config_path;
  int64_t world = 0;  // 0: as few ranks as the parallel section allows
  std::vector<std::string> overrides;
};
// Prints which rank is in which group.
absl::Status RunPlan(const PlanOptions& options);

struct VerifyOptions {
  std::string config_path;
  int64_t steps = 2;
  std::vector<std::string> overrides;
};
// Trains a few steps on the ranks that were started and again in one process, and prints "equal" or
// the first difference, which is an error.
absl::Status RunVerify(const VerifyOptions& options);

struct InspectOptions {
  std::string path;
};
absl::Status RunInspect(const InspectOptions& options);

absl::Status RunDoctor();

}  // namespace meshfold::train
