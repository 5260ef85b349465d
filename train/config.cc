#include "train/config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <sstream>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "optim/lr_schedule.h"
#include "parallel/rank_layout.h"
#include "train/config_keys.h"
#include "train/schema.h"

namespace meshfold::train {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

models::QkNorm QkNormOf(const ModelSection& model) {
  if (model.qk_norm == "per_head") return models::QkNorm::kPerHead;
  if (model.qk_norm == "per_projection") return models::QkNorm::kPerProjection;
  if (model.qk_norm == "none") return models::QkNorm::kNone;
  if (model.family == "qwen3_moe") return models::QkNorm::kPerHead;
  if (model.family == "olmoe") return models::QkNorm::kPerProjection;
  return models::QkNorm::kNone;
}

const char* QkNormName(models::QkNorm norm) {
  if (norm == models::QkNorm::kPerHead) return "per_head";
  return norm == models::QkNorm::kPerProjection ? "per_projection" : "none";
}

absl::Status ValidateData(const Config& config) {
  const DataSection& data = config.data;
  if (!data.source.empty() && !data.sources.empty()) {
    return Invalid("data.source and data.sources are both set; give one");
  }
  for (size_t i = 0; i < data.sources.size(); ++i) {
    if (data.sources[i].path.empty()) return Invalid("data.sources[", i, "] has no path");
  }
  if (data.packing == "document" && !data.document_mask) {
    return Invalid("data.packing document needs data.document_mask true: padding must not be seen");
  }
  const TrainSection& train = config.train;
  if (train.micro_batch_size > 0 && train.global_batch_size % train.micro_batch_size != 0) {
    return Invalid("train.global_batch_size ", train.global_batch_size,
                   " is not a multiple of train.micro_batch_size ", train.micro_batch_size);
  }
  return absl::OkStatus();
}

absl::Status ValidateSchedule(const Config& config) {
  const ScheduleSection& schedule = config.schedule;
  const int64_t steps = config.train.steps;
  if (schedule.warmup_steps > steps) {
    return Invalid("schedule.warmup_steps ", schedule.warmup_steps, " is above train.steps ",
                   steps);
  }
  if (schedule.decay_steps > steps - schedule.warmup_steps) {
    return Invalid("schedule.decay_steps ", schedule.decay_steps, " is above the ",
                   steps - schedule.warmup_steps, " steps that train.steps ", steps,
                   " leaves after schedule.warmup_steps ", schedule.warmup_steps);
  }
  return optim::Validate({.name = schedule.name,
                          .peak_lr = config.optimizer.lr,
                          .total_steps = steps,
                          .warmup_steps = schedule.warmup_steps,
                          .decay_steps = schedule.decay_steps,
                          .min_lr_ratio = schedule.min_lr_ratio});
}

absl::Status ValidateDenseLayers(const Config& config) {
  const std::vector<int64_t>& layers = config.model.dense_layers;
  if (!layers.empty() && config.moe.options.num_experts == 0) {
    return Invalid("model.dense_layers names ", layers.size(),
                   " layers, but every layer is dense: moe.num_experts is 0");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] < 0 || layers[i] >= config.model.num_layers) {
      return Invalid("model.dense_layers names layer ", layers[i], ", model.num_layers is ",
                     config.model.num_layers);
    }
    if (std::count(layers.begin(), layers.begin() + static_cast<int64_t>(i), layers[i]) > 0) {
      return Invalid("model.dense_layers names layer ", layers[i], " twice");
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateModel(const Config& config) {
  const ModelSection& model = config.model;
  if (!model.hf.empty()) return absl::OkStatus();  // its config.json is checked when it is read
  if (model.head_dim == 0 && model.hidden_size % model.num_heads != 0) {
    return Invalid("model.hidden_size ", model.hidden_size,
                   " is not a multiple of model.num_heads ", model.num_heads,
                   "; give model.head_dim");
  }
  if (config.data.sequence_length > model.max_position) {
    return Invalid("data.sequence_length ", config.data.sequence_length,
                   " is above model.max_position ", model.max_position);
  }
  MF_RETURN_IF_ERROR(ValidateDenseLayers(config));
  models::ModelConfig architecture = ToModelConfig(config);
  if (architecture.vocab_size == 0) architecture.vocab_size = 1;  // known once the data is open
  return models::Validate(architecture);
}

}  // namespace

absl::StatusOr<Config> ParseConfig(absl::string_view text, absl::string_view place,
                                   absl::Span<const std::string> overrides) {
  Config config;
  Schema schema;
  DeclareConfig(config, schema);
  MF_RETURN_IF_ERROR(schema.Read(text, place));
  for (const std::string& assignment : overrides) MF_RETURN_IF_ERROR(schema.Set(assignment));
  if (config.run.dir.empty()) config.run.dir = absl::StrCat("runs/", config.run.name);
  models::MoeConfig& moe = config.moe.options;
  // Mixtral divides always; its Hugging Face config has no word for anything else.
  const bool may_skip = moe.top_k == 1 && config.model.family != "mixtral";
  if (may_skip && !schema.IsGiven("moe.renormalize")) moe.renormalize = false;
  const absl::Status valid = Validate(config);
  if (!valid.ok()) return absl::Status(valid.code(), absl::StrCat(place, ": ", valid.message()));
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  absl::Span<const std::string> overrides) {
  std::ifstream file(path);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    return absl::NotFoundError(absl::StrCat("cannot read config '", path, "'"));
  }
  // An override that comes first gives way to the file and to the user's own.
  Config probe;
  Schema schema;
  DeclareConfig(probe, schema);
  MF_RETURN_IF_ERROR(schema.Read(text.str(), path));
  std::vector<std::string> all(overrides.begin(), overrides.end());
  if (!schema.IsGiven("run.name")) {
    all.insert(all.begin(), absl::StrCat("run.name=", std::filesystem::path(path).stem().string()));
  }
  return ParseConfig(text.str(), path, all);
}

absl::Status Validate(const Config& config) {
  MF_RETURN_IF_ERROR(ValidateData(config));
  MF_RETURN_IF_ERROR(ValidateSchedule(config));
  return ValidateModel(config);
}

absl::StatusOr<parallel::RankLayout> LayoutOf(const Config& config, int64_t world) {
  const ParallelSection& p = config.parallel;
  parallel::ParallelSizes sizes;
  sizes.data = p.data;
  sizes.tensor = p.tensor;
  sizes.expert = p.expert;
  sizes.expert_tensor = p.expert_tensor;
  sizes.pipeline = p.pipeline;
  sizes.context = p.context;
  sizes.ulysses = p.ulysses;
  MF_ASSIGN_OR_RETURN(const parallel::RankLayout layout, parallel::PlanRanks(sizes, world));
  const int64_t num_experts = config.moe.options.num_experts;
  if (config.model.hf.empty() && num_experts % p.expert != 0) {
    return Invalid("moe.num_experts ", num_experts, " is not a multiple of parallel.expert ",
                   p.expert);
  }
  if (config.model.hf.empty() && num_experts == 0 && p.expert > 1) {
    return Invalid("parallel.expert ", p.expert, " has nothing to divide: moe.num_experts is 0");
  }
  if (p.sequence && p.tensor == 1) {
    return Invalid("parallel.sequence needs parallel.tensor above 1, it is 1");
  }
  if (p.zero_stage > 0 && layout.dense.size("dp") == 1) {
    return Invalid("parallel.zero.stage ", p.zero_stage,
                   " needs more than one data-parallel rank, there is 1");
  }
  return layout;
}

models::ModelConfig ToModelConfig(const Config& config) {
  const ModelSection& c = config.model;
  models::ModelConfig model;
  model.family = c.family;
  model.vocab_size = c.vocab_size;
  model.hidden_size = c.hidden_size;
  model.num_layers = c.num_layers;
  model.num_heads = c.num_heads;
  model.num_kv_heads = c.num_kv_heads;
  model.head_dim = c.head_dim > 0 ? c.head_dim : c.hidden_size / c.num_heads;
  model.intermediate_size = c.intermediate_size;
  model.max_position = c.max_position;
  model.norm_eps = c.norm_eps;
  model.tie_embeddings = c.tie_embeddings;
  model.sliding_window = c.sliding_window;
  model.qk_norm = QkNormOf(c);
  model.clip_qkv = c.clip_qkv;
  model.attention_bias = c.attention_bias;
  model.mlp_bias = c.mlp_bias;
  model.rope = c.rope;
  model.special_tokens = c.special_tokens;
  model.moe = config.moe.options;
  model.initializer_range = c.initializer_range;
  if (c.dense_layers.empty()) return model;
  model.layer_is_moe.assign(static_cast<size_t>(c.num_layers), true);
  for (int64_t layer : c.dense_layers) {
    if (layer >= 0 && layer < c.num_layers) model.layer_is_moe[static_cast<size_t>(layer)] = false;
  }
  return model;
}

Config WithModel(Config config, const models::ModelConfig& model) {
  ModelSection& c = config.model;
  c.hf.clear();
  c.family = model.family;
  c.vocab_size = model.vocab_size;
  c.hidden_size = model.hidden_size;
  c.num_layers = model.num_layers;
  c.num_heads = model.num_heads;
  c.num_kv_heads = model.num_kv_heads;
  c.head_dim = model.head_dim;
  c.intermediate_size = model.intermediate_size;
  c.max_position = model.max_position;
  c.norm_eps = model.norm_eps;
  c.tie_embeddings = model.tie_embeddings;
  c.sliding_window = model.sliding_window;
  c.qk_norm = QkNormName(model.qk_norm);
  c.clip_qkv = model.clip_qkv;
  c.attention_bias = model.attention_bias;
  c.mlp_bias = model.mlp_bias;
  c.rope = model.rope;
  c.special_tokens = model.special_tokens;
  c.initializer_range = model.initializer_range;
  c.dense_layers.clear();
  for (size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    if (model.moe.num_experts == 0) break;
    if (!model.layer_is_moe[layer]) c.dense_layers.push_back(static_cast<int64_t>(layer));
  }
  config.moe.options = model.moe;
  // Where batches come from elsewhere, nothing has compared the default with this model.
  config.data.sequence_length = std::min(config.data.sequence_length, model.max_position);
  return config;
}

std::vector<std::string> ModelDifferences(const Config& here, const Config& there) {
  constexpr absl::string_view kOfNoEffect[] = {"model.hf", "model.dtype", "model.initializer_range",
                                               "moe.dispatcher", "moe.planner"};
  Config copies[2] = {here, there};
  Schema schemas[2];
  for (size_t i = 0; i < 2; ++i) DeclareConfig(copies[i], schemas[i]);
  std::vector<std::string> differences;
  for (const Key& key : schemas[0].keys()) {
    const bool is_model = absl::StartsWith(key.section, "model") || key.section == "moe";
    if (!is_model || absl::StartsWith(key.section, "model.special_tokens")) continue;
    if (absl::c_linear_search(kOfNoEffect, key.path())) continue;
    const std::string value = key.ValueText();
    const std::string other = schemas[1].Find(key.section, key.name)->ValueText();
    if (value != other) {
      differences.push_back(absl::StrCat(key.path(), " ", value, " (there ", other, ")"));
    }
  }
  return differences;
}

std::string ResolvedYaml(const Config& config) {
  Config copy = config;
  Schema schema;
  DeclareConfig(copy, schema);
  return schema.ToYaml();
}

std::string ConfigDoc() {
  Config defaults;
  Schema schema;
  DeclareConfig(defaults, schema);
  return absl::StrCat("# Configuration keys\n\n", schema.ToMarkdown());
}

std::string ConfigJsonSchema() {
  Config defaults;
  Schema schema;
  DeclareConfig(defaults, schema);
  return schema.ToJsonSchema();
}

}  // namespace meshfold::train
