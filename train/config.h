// Config: everything a user can set, as plain data. The keys are declared in config_keys.cc, once
// each; `meshfold config --doc` shows them all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/dtype.h"
#include "models/model_config.h"
#include "parallel/rank_layout.h"
#include "train/progress_mode.h"

namespace meshfold::train {

struct RunSection {
  std::string name = "run";  // LoadConfig: the file's name without its ending, unless given
  std::string dir;           // ParseConfig makes it runs/<name> when empty
  int64_t seed = 1234;
};

// models::ModelConfig as users write it.
struct ModelSection {
  std::string hf;  // Hugging Face directory: architecture and weights
  DType dtype = DType::kF32;
  std::string family = "qwen3_moe";
  int64_t vocab_size = 0;  // 0: that of the data
  int64_t hidden_size = 256;
  int64_t num_layers = 4;
  int64_t num_heads = 4;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 0;  // 0: hidden_size / num_heads
  int64_t intermediate_size = 1024;
  int64_t max_position = 4096;
  double norm_eps = 1e-6;
  bool tie_embeddings = false;
  int64_t sliding_window = 0;
  std::string qk_norm = "auto";
  double clip_qkv = 0.0;
  bool attention_bias = false;
  bool mlp_bias = false;
  std::vector<int64_t> dense_layers;
  double initializer_range = 0.02;
  models::RopeConfig rope;
  models::SpecialTokens special_tokens;
};

struct MoeSection {
  models::MoeConfig options;
  std::string planner = "static_ep";
};

struct DataSource {
  std::string path;
  double weight = 1.0;
};

struct DataSection {
  std::string source;               // one source of weight 1 ...
  std::vector<DataSource> sources;  // ... or several
  std::string tokenizer = "byte";
  int64_t sequence_length = 256;
  bool document_mask = true;
  std::string packing = "stream";
  double validation_fraction = 0.0;
  std::string validation_by = "document";
  bool shuffle = true;
};

struct TrainSection {
  int64_t steps = 100;
  int64_t global_batch_size = 8;
  int64_t micro_batch_size = 0;  // 0: the whole batch
  int64_t eval_interval = 0;
  int64_t eval_batches = 0;
  int64_t log_interval = 10;
};

struct OptimizerSection {
  std::string name = "adamw";
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.0;
  double clip_norm = 1.0;
  bool master_weights = true;
};

struct ScheduleSection {
  std::string name = "cosine";
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;
  double min_lr_ratio = 0.1;
};

struct ParallelSection {
  int64_t data = 0;  // 0: auto
  int64_t tensor = 1, expert = 1, expert_tensor = 1, pipeline = 1, context = 1, ulysses = 1;
  bool sequence = false;
  int64_t zero_stage = 0;
};

struct MemorySection {
  int64_t device_limit = 0;
};

struct CheckpointSection {
  std::string dir;  // empty: run.dir/checkpoints
  int64_t interval = 0;
  int64_t keep = 0;
};

struct MonitorSection {
  ProgressMode progress = ProgressMode::kAuto;
};

struct RuntimeSection {
  int64_t threads = 0;
};

struct Config {
  RunSection run;
  ModelSection model;
  MoeSection moe;
  DataSection data;
  TrainSection train;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  ParallelSection parallel;
  MemorySection memory;
  CheckpointSection checkpoint;
  MonitorSection monitor;
  RuntimeSection runtime;
};

// Reads YAML, applies "section.key=value" overrides in order, fills derived values and checks that
// keys fit together. InvalidArgument, one sentence with place and values, for anything wrong;
// NotFound for a missing file. `place` leads the messages, with the line.
absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  absl::Span<const std::string> overrides = {});
absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view place,
                                   absl::Span<const std::string> overrides = {});

// Checks of keys against each other, but for what depends on the number of ranks (LayoutOf);
// ParseConfig has done it already.
absl::Status Validate(const Config& config);

// Which of `world` ranks does what. InvalidArgument with both numbers unless the parallel sizes
// multiply to `world` and the experts can be dealt out evenly.
absl::StatusOr<parallel::RankLayout> LayoutOf(const Config& config, int64_t world);

// The architecture that the keys describe (model.hf not looked at). A vocab_size of 0 stays 0 until
// the data is known.
models::ModelConfig ToModelConfig(const Config& config);
// `config` with an architecture written out in its keys and model.hf empty: what a checkpoint
// saves. data.sequence_length is cut to the architecture's longest document, so that it is valid.
Config WithModel(Config config, const models::ModelConfig& model);

// "model.rope.theta 10000.0 (there 1000000.0)": the keys of model and moe that say something else
// in `there`, except those that do not change what the model computes.
std::vector<std::string> ModelDifferences(const Config& here, const Config& there);

// Every key with its value; parsing it gives the same config.
std::string ResolvedYaml(const Config& config);
// Every key with type, unit, default, range and meaning: Markdown.
std::string ConfigDoc();
// JSON Schema, draft 2020-12, by which editors complete and check a config.
std::string ConfigJsonSchema();

}  // namespace meshfold::train
