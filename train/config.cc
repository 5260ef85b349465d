#include "train/config.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "optim/lr_schedule.h"
#include "train/schema.h"

namespace meshfold::train {
namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40;

IntRange AtLeast(int64_t min) { return {.min = min, .max = kMaxSize}; }
FloatRange NotNegative() { return {.min = 0.0}; }
FloatRange Positive() { return {.min = 0.0, .exclude_min = true}; }
FloatRange Fraction() { return {.min = 0.0, .max = 1.0}; }

void DeclareRun(Schema& s, RunSection& c) {
  s.Section("run", "Where a run writes and what it draws its numbers from.");
  s.String("name", &c.name, "Names the run.");
  s.String("dir", &c.dir, "Directory for everything the run writes; empty means runs/<name>.");
  s.Int("seed", &c.seed, AtLeast(0), "", "Seed of initial weights and data order.");
}

void DeclareModel(Schema& s, ModelSection& c) {
  s.Section("model", "The architecture.");
  s.String("hf", &c.hf, "Hugging Face directory to take architecture and weights from; the other "
                        "keys of this section are then not used, dtype apart.");
  s.Enum<DType>("dtype", &c.dtype, {{"f32", DType::kF32}, {"bf16", DType::kBF16}},
                "Storage of the weights; bf16 keeps f32 masters in the optimizer.");
  s.String("family", &c.family, "Model family: llama, mixtral, qwen3_moe or olmoe.");
  s.Int("vocab_size", &c.vocab_size, AtLeast(0), "ids", "Vocabulary; 0 takes that of the data.");
  s.Int("hidden_size", &c.hidden_size, AtLeast(1), "", "Width of the residual stream.");
  s.Int("num_layers", &c.num_layers, AtLeast(1), "", "Decoder blocks.");
  s.Int("num_heads", &c.num_heads, AtLeast(1), "", "Query heads.");
  s.Int("num_kv_heads", &c.num_kv_heads, AtLeast(1), "", "Key and value heads; divides num_heads.");
  s.Int("head_dim", &c.head_dim, AtLeast(0), "", "Width of a head; 0 means hidden_size / num_heads.");
  s.Int("intermediate_size", &c.intermediate_size, AtLeast(1), "", "Width of dense MLPs.");
  s.Int("max_position", &c.max_position, AtLeast(1), "tokens", "Longest document.");
  s.Float("norm_eps", &c.norm_eps, Positive(), "", "Added to the mean square in RMSNorm.");
  s.Bool("tie_embeddings", &c.tie_embeddings, "Whether the head shares the embedding's weights.");
  s.Int("sliding_window", &c.sliding_window, AtLeast(0), "tokens",
        "Keys that a query sees; 0 means all earlier ones.");
  s.Enum<std::string>("qk_norm", &c.qk_norm,
                      {{"auto", "auto"},
                       {"none", "none"},
                       {"per_head", "per_head"},
                       {"per_projection", "per_projection"}},
                      "RMSNorm on queries and keys; auto is what the family has.");
  s.Float("clip_qkv", &c.clip_qkv, NotNegative(), "", "Bound on q, k and v elements; 0 is off.");
  s.Bool("attention_bias", &c.attention_bias, "Biases on the attention projections.");
  s.Bool("mlp_bias", &c.mlp_bias, "Biases in dense MLPs.");
  s.IntList("dense_layers", &c.dense_layers, "Layers, from 0, that have a dense MLP.");
  s.Float("initializer_range", &c.initializer_range, NotNegative(), "",
          "Standard deviation of initial weights.");
}

void DeclareRope(Schema& s, models::RopeConfig& c) {
  using Scaling = models::RopeConfig::Scaling;
  s.Float("rope_theta", &c.theta, Positive(), "", "Base of the rotary frequencies.");
  s.Enum<Scaling>("rope_scaling", &c.scaling,
                  {{"none", Scaling::kNone},
                   {"linear", Scaling::kLinear},
                   {"llama3", Scaling::kLlama3},
                   {"yarn", Scaling::kYarn}},
                  "How the frequencies are stretched for longer contexts.");
  s.Float("rope_factor", &c.factor, Positive(), "", "Stretch of the context.");
  s.Float("rope_low_freq_factor", &c.low_freq_factor, Positive(), "", "Of llama3 scaling.");
  s.Float("rope_high_freq_factor", &c.high_freq_factor, Positive(), "", "Of llama3 scaling.");
  s.Int("rope_original_max_position", &c.original_max_position, AtLeast(0), "tokens",
        "Context before stretching, of llama3 and yarn; 0 means max_position.");
  s.Float("rope_beta_fast", &c.beta_fast, Positive(), "", "Of yarn scaling.");
  s.Float("rope_beta_slow", &c.beta_slow, Positive(), "", "Of yarn scaling.");
  s.Float("rope_mscale", &c.mscale, NotNegative(), "", "Of yarn scaling; 0 is unset.");
  s.Float("rope_mscale_all_dim", &c.mscale_all_dim, NotNegative(), "",
          "Of yarn scaling; 0 is unset.");
  s.Float("rope_attention_factor", &c.attention_factor, NotNegative(), "",
          "Factor of yarn on cosines and sines; 0 derives it.");
  s.Bool("rope_truncate", &c.truncate, "Of yarn: round the correction range to whole dims.");
}

void DeclareMoe(Schema& s, MoeSection& section) {
  models::MoeConfig& c = section.options;
  s.Section("moe", "The mixture of experts.");
  s.Int("num_experts", &c.num_experts, AtLeast(0), "", "Experts a layer; 0 is a dense model.");
  s.Int("top_k", &c.top_k, AtLeast(0), "", "Experts that a token is sent to.");
  s.Int("expert_size", &c.expert_size, AtLeast(0), "", "Hidden width of one expert.");
  s.Int("num_shared_experts", &c.num_shared_experts, AtLeast(0), "",
        "Experts that every token passes, as one SwiGLU of their joint width.");
  s.String("router", &c.router, "How experts are chosen: softmax_top_k or sigmoid_group_bias.");
  s.Bool("renormalize", &c.renormalize, "Whether the chosen weights are divided by their sum.");
  s.Float("routed_scaling", &c.routed_scaling, Positive(), "", "Factor on the chosen weights.");
  s.Int("num_groups", &c.num_groups, AtLeast(1), "", "Groups of experts (sigmoid_group_bias).");
  s.Int("top_k_groups", &c.top_k_groups, AtLeast(1), "", "Groups that a token may use.");
  s.Float("aux_loss", &c.aux_loss_coefficient, NotNegative(), "",
          "Coefficient of the balance loss, which is 1 a layer when experts are used evenly.");
  s.Float("z_loss", &c.z_loss_coefficient, NotNegative(), "",
          "Coefficient of the mean squared log-sum-exp of the router's logits.");
  s.Float("bias_update_rate", &c.bias_update_rate, NotNegative(), "",
          "Step of the balancing bias (sigmoid_group_bias).");
  s.Float("capacity_factor", &c.capacity_factor, NotNegative(), "",
          "An expert takes at most this times its even share of a micro-batch; 0 is no limit.");
  s.String("dispatcher", &c.dispatcher, "How tokens reach experts: local.");
  s.String("planner", &section.planner, "Where experts are computed: static_ep.");
}

absl::Status ParseSources(const YAML::Node& node, std::vector<DataSource>* out) {
  std::vector<DataSource> sources;
  if (!node.IsSequence()) return absl::InvalidArgumentError("not a list of {path, weight}");
  for (const auto& item : node) {
    DataSource source;
    Schema schema;
    schema.Section("source", "");
    schema.String("path", &source.path, "");
    schema.Float("weight", &source.weight, Positive(), "", "");
    YAML::Node wrapped;
    wrapped["source"] = static_cast<const YAML::Node&>(item);
    MF_RETURN_IF_ERROR(schema.Parse(wrapped, "in a source"));
    if (source.path.empty()) return absl::InvalidArgumentError("a source has no path");
    sources.push_back(source);
  }
  *out = sources;
  return absl::OkStatus();
}

Field SourcesField(std::vector<DataSource>* sources) {
  Field field;
  field.key = "sources";
  field.type = "list of {path, weight}";
  field.doc = "Several sources, mixed by weight, instead of source.";
  field.schema = {{"type", "array"},
                  {"items",
                   {{"type", "object"},
                    {"required", {"path"}},
                    {"additionalProperties", false},
                    {"properties",
                     {{"path", {{"type", "string"}}}, {"weight", {{"type", "number"}}}}}}}};
  field.parse = [sources](const YAML::Node& node) { return ParseSources(node, sources); };
  field.to_json = [sources] {
    nlohmann::json list = nlohmann::json::array();
    for (const DataSource& source : *sources) {
      list.push_back({{"path", source.path}, {"weight", source.weight}});
    }
    return list;
  };
  field.to_yaml = [to_json = field.to_json] { return to_json().dump(); };  // JSON is YAML
  return field;
}

void DeclareData(Schema& s, DataSection& c) {
  s.Section("data", "The corpus and how it is cut into sequences.");
  s.String("source", &c.source,
           "python:stdlib, a pattern of text files, an .idx/.bin prefix, or a .safetensors or .npy "
           "file of tokens.");
  s.Custom(SourcesField(&c.sources));
  s.Enum<std::string>("tokenizer", &c.tokenizer, {{"byte", "byte"}, {"none", "none"}},
                      "Tokenizer of text sources; none for sources that hold tokens.");
  s.Int("sequence_length", &c.sequence_length, AtLeast(1), "tokens", "Length of a sequence.");
  s.Bool("document_mask", &c.document_mask,
         "Whether documents packed into one sequence are hidden from each other.");
  s.Enum<std::string>("packing", &c.packing, {{"stream", "stream"}, {"document", "document"}},
                      "stream cuts the shuffled corpus every sequence_length tokens; document packs "
                      "whole documents and pads.");
  s.Float("validation_fraction", &c.validation_fraction, Fraction(), "",
          "Share of the documents kept for validation.");
  s.Bool("shuffle", &c.shuffle, "Whether documents and samples are shuffled in each epoch.");
}

void DeclareTrain(Schema& s, TrainSection& c) {
  s.Section("train", "The length of the run and the size of its steps.");
  s.Int("steps", &c.steps, AtLeast(1), "optimizer steps", "Steps of the whole run.");
  s.Int("global_batch_size", &c.global_batch_size, AtLeast(1), "sequences",
        "Sequences a step, over all ranks and micro-batches.");
  s.Int("micro_batch_size", &c.micro_batch_size, AtLeast(0), "sequences",
        "Sequences a rank takes at once; 0 means all of its share.");
  s.Int("eval_interval", &c.eval_interval, AtLeast(0), "steps",
        "Steps between validations; 0 validates only at the end.");
  s.Int("eval_batches", &c.eval_batches, AtLeast(0), "batches",
        "Batches of a validation; 0 means the whole split.");
  s.Int("log_interval", &c.log_interval, AtLeast(1), "steps",
        "Steps between progress lines where there is no terminal.");
}

void DeclareOptimizer(Schema& s, OptimizerSection& c) {
  s.Section("optimizer", "The update rule.");
  s.Enum<std::string>("name", &c.name, {{"adamw", "adamw"}, {"sgd", "sgd"}}, "Update rule.");
  s.Float("lr", &c.lr, NotNegative(), "", "Peak learning rate.");
  s.Float("beta1", &c.beta1, Fraction(), "", "Decay of Adam's first moment.");
  s.Float("beta2", &c.beta2, Fraction(), "", "Decay of Adam's second moment.");
  s.Float("eps", &c.eps, NotNegative(), "", "Added to the root of Adam's second moment.");
  s.Float("weight_decay", &c.weight_decay, NotNegative(), "",
          "Decoupled decay of matrices; norms and biases do not decay.");
  s.Float("momentum", &c.momentum, Fraction(), "", "Momentum of sgd.");
  s.Float("clip_norm", &c.clip_norm, NotNegative(), "", "Largest gradient norm; 0 is off.");
  s.Bool("master_weights", &c.master_weights, "Keep f32 masters of 16-bit weights.");
}

void DeclareSchedule(Schema& s, ScheduleSection& c) {
  s.Section("schedule", "The learning rate over the run.");
  s.Enum<std::string>(
      "name", &c.name,
      {{"cosine", "cosine"}, {"linear", "linear"}, {"constant", "constant"}, {"wsd", "wsd"}},
      "Shape after warm-up.");
  s.Int("warmup_steps", &c.warmup_steps, AtLeast(0), "steps", "Linear warm-up from 0.");
  s.Int("decay_steps", &c.decay_steps, AtLeast(0), "steps", "Final decay of wsd.");
  s.Float("min_lr_ratio", &c.min_lr_ratio, Fraction(), "", "Last learning rate over the peak.");
}

void DeclareParallel(Schema& s, ParallelSection& c) {
  s.Section("parallel", "The layout: sizes multiply to the number of ranks.");
  s.IntOrAuto("data", &c.data, AtLeast(1), "Data-parallel replicas; auto fills up the ranks.");
  s.Int("tensor", &c.tensor, AtLeast(1), "ranks", "Tensor parallelism.");
  s.Bool("sequence", &c.sequence, "Sequence parallelism inside the tensor groups.");
  s.Int("expert", &c.expert, AtLeast(1), "ranks", "Expert parallelism.");
  s.Int("expert_tensor", &c.expert_tensor, AtLeast(1), "ranks", "Tensor parallelism of experts.");
  s.Int("pipeline", &c.pipeline, AtLeast(1), "ranks", "Pipeline stages.");
  s.Int("context", &c.context, AtLeast(1), "ranks", "Context parallelism.");
  s.Int("ulysses", &c.ulysses, AtLeast(1), "ranks", "Ulysses sequence parallelism.");
  s.Int("zero_stage", &c.zero_stage, {.min = 0, .max = 3}, "", "ZeRO sharding stage.");
}

void DeclareRest(Schema& s, Config& c) {
  s.Section("memory", "Limits of memory pools.");
  s.Bytes("device_limit", &c.memory.device_limit, "Limit of tensor memory; 0 is no limit.");
  s.Section("checkpoint", "Saving.");
  s.String("dir", &c.checkpoint.dir, "Directory of checkpoints; empty means run.dir/checkpoints.");
  s.Int("interval", &c.checkpoint.interval, AtLeast(0), "steps",
        "Steps between checkpoints; 0 saves only at the end.");
  s.Int("keep", &c.checkpoint.keep, AtLeast(0), "checkpoints",
        "Newest checkpoints that are kept; 0 keeps all.");
  s.Section("monitor", "What a run shows.");
  s.Enum<ProgressMode>("progress", &c.monitor.progress,
                       {{"auto", ProgressMode::kAuto},
                        {"on", ProgressMode::kOn},
                        {"off", ProgressMode::kOff}},
                       "Progress: a rewritten line on a terminal, sparse lines elsewhere.");
  s.Section("runtime", "How the machine is used.");
  s.Int("threads", &c.runtime.threads, {.min = 0, .max = 1024}, "threads",
        "Threads a rank; 0 means all cores. The same number gives the same bits.");
}

Schema Declare(Config& config) {
  Schema schema;
  DeclareRun(schema, config.run);
  DeclareModel(schema, config.model);
  DeclareRope(schema, config.model.rope);
  DeclareMoe(schema, config.moe);
  DeclareData(schema, config.data);
  DeclareTrain(schema, config.train);
  DeclareOptimizer(schema, config.optimizer);
  DeclareSchedule(schema, config.schedule);
  DeclareParallel(schema, config.parallel);
  DeclareRest(schema, config);
  return schema;
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
  switch (norm) {
    case models::QkNorm::kNone: return "none";
    case models::QkNorm::kPerHead: return "per_head";
    case models::QkNorm::kPerProjection: return "per_projection";
  }
  return "none";
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::string& text, const std::string& source,
                                   const std::vector<std::string>& overrides) {
  Config config;
  Schema schema = Declare(config);
  YAML::Node root;
  MF_RETURN_IF_ERROR(LoadYaml(text, source, &root));
  try {
    MF_RETURN_IF_ERROR(schema.Parse(root, source));
    for (const std::string& assignment : overrides) {
      MF_RETURN_IF_ERROR(schema.ParseOverride(assignment));
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": not valid YAML: ", error.what()));
  }
  if (config.run.dir.empty()) config.run.dir = absl::StrCat("runs/", config.run.name);
  absl::Status valid = Validate(config);
  if (valid.ok()) return config;
  return absl::Status(valid.code(), absl::StrCat(source, ": ", valid.message()));
}

absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  const std::vector<std::string>& overrides) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open config '", path, "'"));
  std::stringstream text;
  text << file.rdbuf();
  return ParseConfig(text.str(), path, overrides);
}

absl::Status Validate(const Config& config) {
  const TrainSection& train = config.train;
  if (train.micro_batch_size > 0 && train.global_batch_size % train.micro_batch_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.global_batch_size ", train.global_batch_size,
                     " is not a multiple of train.micro_batch_size ", train.micro_batch_size));
  }
  if (!config.data.source.empty() && !config.data.sources.empty()) {
    return absl::InvalidArgumentError("data.source and data.sources are both set; give one");
  }
  if (config.data.sequence_length > config.model.max_position && config.model.hf.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length ", config.data.sequence_length,
                     " exceeds model.max_position ", config.model.max_position));
  }
  if (config.data.packing == "document" && !config.data.document_mask) {
    return absl::InvalidArgumentError(
        "data.packing document needs data.document_mask true: padding must not be seen");
  }
  optim::ScheduleConfig schedule{.name = config.schedule.name,
                                 .peak_lr = config.optimizer.lr,
                                 .total_steps = config.train.steps,
                                 .warmup_steps = config.schedule.warmup_steps,
                                 .decay_steps = config.schedule.decay_steps,
                                 .min_lr_ratio = config.schedule.min_lr_ratio};
  MF_RETURN_IF_ERROR(optim::Validate(schedule));
  MF_RETURN_IF_ERROR(ValidateParallel(config.parallel, 1));
  if (!config.model.hf.empty()) return absl::OkStatus();
  for (int64_t layer : config.model.dense_layers) {
    if (layer >= 0 && layer < config.model.num_layers) continue;
    return absl::InvalidArgumentError(absl::StrCat("model.dense_layers holds ", layer,
                                                   ", model.num_layers is ",
                                                   config.model.num_layers));
  }
  models::ModelConfig model = ToModelConfig(config);
  if (model.vocab_size == 0) model.vocab_size = 1;  // known once the data is open
  return models::Validate(model);
}

absl::Status ValidateParallel(const ParallelSection& p, int64_t world) {
  int64_t others = p.tensor * p.pipeline * p.context * p.ulysses;
  int64_t data = p.data == 0 ? 1 : p.data;
  if (data * others != world || p.expert * p.expert_tensor > world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the parallel sizes ask for ", std::max(data * others, p.expert * p.expert_tensor),
        " ranks, the run has ", world));
  }
  if (p.sequence && p.tensor == 1) {
    return absl::InvalidArgumentError("parallel.sequence needs parallel.tensor above 1, it is 1");
  }
  if (p.zero_stage > 0 && data == 1) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.zero_stage ", p.zero_stage,
                                                   " needs more than 1 data-parallel rank"));
  }
  return absl::OkStatus();
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
  model.moe = config.moe.options;
  model.initializer_range = c.initializer_range;
  if (c.dense_layers.empty() || model.moe.num_experts == 0) return model;
  model.layer_is_moe.assign(static_cast<size_t>(c.num_layers), true);
  for (int64_t layer : c.dense_layers) model.layer_is_moe[static_cast<size_t>(layer)] = false;
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
  c.initializer_range = model.initializer_range;
  c.dense_layers.clear();
  for (size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    if (!model.layer_is_moe[layer]) c.dense_layers.push_back(static_cast<int64_t>(layer));
  }
  config.moe.options = model.moe;
  return config;
}

std::string ResolvedYaml(const Config& config) {
  Config copy = config;
  return Declare(copy).ToYaml();
}

std::string ConfigDoc() {
  Config defaults;
  return Declare(defaults).ToDoc();
}

std::string ConfigJsonSchema() {
  Config defaults;
  return Declare(defaults).ToJsonSchema().dump(2) + "\n";
}

}  // namespace meshfold::train
